"""Several runs in one program: a member is the same run alone."""

import json
import os
import re
import signal
import zlib

import jax
import numpy as np
import pytest

import rljax
from rljax.algorithms.base import compose, recipe
from rljax.config import files
from rljax.host import sinks
from rljax.run import loop
from rljax.run.members import cohorts, sweep
from rljax.transforms import advantage, define, reduce
from tests.run.producers import test_host_driver
from tests.support import tiny

FIELDS = {"seed": [0, 1], "algorithm.negative": [0.5, 1.0]}


def config(**fields):
    return tiny.config("w_reinforce()", log__rollouts=0, **fields)


@define.surrogate
def reading(loss, rollout, scores, scale: float = 1.0):
    """Read a number by Python while the step is traced."""
    return -rollout.advantage * scores.logp * (2.0 if scale > 1.5 else 1.0)


@recipe
def read(scale: float = 1.0):
    """Reinforce with ``reading``."""
    return compose(
        advantage=[advantage.sign_weighted(1.0, 1.0)], loss=[reading(scale)], reduce=reduce.mean_over_tokens()
    )


class _Stop:
    """Sends SIGTERM to this process after step 3 of a run that has not been resumed."""

    def __init__(self, run):
        self.new = run.first == 1

    def scalars(self, log, step, phase, values):
        if self.new and log == "metrics" and step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    def rollouts(self, records):
        pass

    picture = flush = close = lambda *_: None


@sinks.sink
def stopping():
    """A sink that interrupts its run."""
    return _Stop


def alone(member, c, workdir=None):
    """Return the result of a member's config, run by itself on one device."""
    c = c.copy_and_resolve_references()
    for field, value in member.fields.items():
        files.override(c, field, value)
    return rljax.train(c, workdir, progress=False, devices=jax.devices()[:1])


def distance(one, two):
    """Return the largest difference of two runs' parameters."""
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params), strict=True)
    return max(float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y)))) for x, y in pairs)


def planned(c, fields, structural=()):
    return cohorts.plan(sweep.expand(sweep.grid(fields), c), structural)


# --- which runs share a program ---------------------------------------------------------------------------


def test_runs_that_differ_in_seeds_and_numbers_share_a_program():
    (cohort,) = planned(
        config(), FIELDS | {"phase.main.optimizer.learning_rate": [1e-3], "sampler.temperature": [0.9, 1]}
    )
    assert cohort.traced == {"algorithm.negative": (0.5, 0.5, 1.0, 1.0) * 2, "sampler.temperature": (0.9, 1.0) * 4}
    assert "seed (2 values)" in cohort.describe() and "learning_rate=0.001" in cohort.describe()


@pytest.mark.parametrize(
    ("fields", "programs"),
    [
        ({"batch.samples": [2, 4]}, 2),
        ({"algorithm": ["psr()", "nsr()"], "seed": [0, 1]}, 2),
        ({"algorithm.entropy": [0.0, 1e-3, 2e-3]}, 2),  # 0 leaves the penalty out
        ({"learner.epochs": [1, 2]}, 2),
        ({"algorithm": ["scale_rl()"], "algorithm.lag": [4, 8]}, 2),
        ({"learner.clip_norm": [0.0, 1.0, 2.0]}, 2),  # 0 is no clipping
        ({"algorithm": ["grpo(kl=0.1)", "grpo(kl=0.2)"]}, 2),  # a number inside a text; algorithm.kl would be traced
    ],
)
def test_what_is_structural_is_a_program_of_its_own(fields, programs):
    assert len(planned(config(), fields)) == programs


def test_the_ends_of_a_schedule_are_numbers():
    c = tiny.config("w_reinforce(entropy=linear(start=0.0, end=0.1, steps=9))")
    (cohort,) = planned(c, {"algorithm.entropy.end": [0.1, 0.2]})
    assert [r.config.algorithm for r in cohort.runs] == [
        f"w_reinforce(entropy=linear(start=0.0, steps=9, end={end}))" for end in (0.1, 0.2)
    ]
    with pytest.raises(ValueError, match="'positive' is not a call, so it has no 'end'"):
        planned(tiny.config("w_reinforce(positive=0.1)"), {"algorithm.positive.end": [0.1]})


def test_tuples_of_equally_many_numbers_are_numbers():
    c = config()
    c.phase.main.seam.source = "mixed(weights=(0.5, 0.5))"
    (cohort,) = planned(c, {"phase.main.seam.source.weights": [(1, 0), (0.5, 0.5)]})
    assert [*cohort.traced.values()] == [((1.0, 0.0), (0.5, 0.5))]
    assert len(planned(c, {"phase.main.seam.source.weights": [(1, 0), (0.2, 0.3, 0.5)]})) == 2


def test_bad_requests_are_refused_before_anything_runs():
    for fields, message in (
        ({"seed": [1, 1]}, "the same run"),
        ({"algorithm.positve": [0.1]}, "positive"),
        ({"algorithm.positive": [-1.0]}, "at least 0|must be"),
    ):
        with pytest.raises(ValueError, match=message):
            rljax.train_many(config(), fields)
    with pytest.raises(ValueError, match=r"need 2 programs, since fields are structural:\s+batch\.samples=2"):
        rljax.train_many(config(), {"batch.samples": [2, 4]}, most=1)
    with pytest.raises(ValueError, match="no runs"):
        rljax.train_many(config(), [])


# --- members ----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_member_is_the_same_run_alone():
    c = config(phase__main__steps=1)
    out = rljax.train_many(c, FIELDS, progress=False, devices=jax.devices()[:2])
    assert [m.name for m in out] == [f"seed={s},negative={n}" for s in (0, 1) for n in (0.5, 1.0)]
    one = alone(out[-1], c)
    assert distance(one, out[-1].result) <= 1e-5 < distance(out[-1].result, out[-2].result)
    assert one.history[0]["loss"] == pytest.approx(out[-1].result.history[0]["loss"], abs=1e-5)


@pytest.mark.full
def test_members_of_one_device_are_computed_together():
    c = config(phase__main__steps=1, sampler__compact=1)
    fields = FIELDS | {"phase.main.optimizer.learning_rate": [1e-3, 2e-3], "sampler.temperature": [0.8, 1.0]}
    out = rljax.train_many(c, fields, progress=False, devices=jax.devices()[:1], width=16)
    assert distance(alone(out[12], c), out[12].result) <= 1e-5
    assert all(distance(out[12].result, other.result) > 1e-5 for other in out[:12])


@pytest.mark.full
def test_members_have_the_files_of_runs_alone_and_resume_bit_for_bit(tmp_path):
    c = tiny.phases("w_reinforce()", phase__main__steps=4, phase__main__evaluate="result")
    c.task = c.task.replace("(", "(votes=True, ", 1)
    fields, options = {"seed": [0, 1, 2]}, {"progress": False, "devices": jax.devices()[:2]}
    whole = rljax.train_many(c, fields, tmp_path / "whole", **options)
    stopped = tmp_path / "stopped"
    sink = "tests.run.members.test_many.stopping()"
    interrupted = tiny.edited(c.copy_and_resolve_references(), {"log__sinks": sink})
    with pytest.raises(loop.Interrupted, match=r"stopped after step [34] of 6, saved"):
        rljax.train_many(interrupted, fields, stopped, **options)
    again = rljax.train_many(interrupted, fields, stopped, **options)
    for one, two in zip(whole, again, strict=True):
        assert distance(one.result, two.result) == 0.0
        for name in ("metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl"):
            assert (one.workdir / name).read_bytes() == (two.workdir / name).read_bytes()
    one = alone(whole[1], c)
    assert distance(one, whole[1].result) == 0.0
    for name in ("pass_at_k", "majority_at_k"):
        assert one.final[-1][name] == whole[1].result.final[-1][name]
    assert json.loads((whole[1].workdir / "config.json").read_text())["seed"] == 1
    with pytest.raises(ValueError, match="contains a run of another config"):
        rljax.train_many(
            tiny.edited(c.copy_and_resolve_references(), {"batch__prompts": 4}), fields, tmp_path / "whole"
        )


@pytest.mark.full
def test_members_beyond_the_memory_are_computed_in_parts(capsys):
    c, devices = config(phase__main__steps=1), jax.devices()[:2]
    at_once = rljax.train_many(c, {"seed": [0, 1, 2]}, progress=False, devices=devices)
    in_parts = rljax.train_many(c, {"seed": [0, 1, 2]}, memory=1, devices=devices)
    line = r"(\d) runs at a time on 2 devices.* of 1 B .may not fit., runs (.*)"
    assert re.findall(line, capsys.readouterr().out) == [("2", "1 to 2"), ("2", "3 to 3")]
    for one, two in zip(at_once, in_parts, strict=True):
        assert distance(one.result, two.result) == 0.0


@pytest.mark.full
def test_a_member_that_is_not_finite_does_not_stop_the_others(tmp_path):
    c = tiny.phases("w_reinforce()", learner__max_skipped=1, learner__clip_norm=0.0, phase__warm__steps=3)
    c.phase.warm.evaluate = c.phase.main.evaluate = ""
    c.phase.warm.optimizer = "sgd(learning_rate=0.1)"
    field, devices = "phase.warm.optimizer.learning_rate", jax.devices()[:1]
    sound, broken = rljax.train_many(c, {field: [0.1, 1e38]}, tmp_path, progress=False, devices=devices)
    assert "consecutive updates were not finite" in broken.failure and broken.result is None
    assert not sound.failure and len(sound.result.history) == 5
    assert "NonFinite" in (broken.workdir / "events.jsonl").read_text().splitlines()[-1]
    both = rljax.train_many(c, {field: [1e38, 2e38]}, progress=False, devices=devices)
    assert all("phase 'warm'" in member.failure and member.result is None for member in both)


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="counts the memory maps of this process")
def test_the_programs_of_runs_that_are_over_are_dropped(monkeypatch):
    maps, clear = [], jax.clear_caches

    def count():
        clear()
        with open("/proc/self/maps") as file:
            maps.append(len(file.readlines()))

    monkeypatch.setattr(jax, "clear_caches", count)
    small = tiny.config(mesh__data=1, run__lag=1, phase__main__steps=1)
    done = rljax.train_many(small, {"learner.epochs": [1, 2, 3]}, progress=False)
    assert all(run.result is not None for run in done)
    assert len(maps) == 2 and maps[1] < maps[0] + 200  # a program of this size has thousands


@pytest.mark.full
def test_a_number_that_python_reads_becomes_programs(capsys):
    fields = {"algorithm": ["tests.run.members.test_many.read(scale=1.0)"], "algorithm.scale": [1.0, 2.0]}
    out = rljax.train_many(config(phase__main__steps=1), fields, devices=jax.devices()[:1])
    assert all(m.result is not None for m in out)
    assert "algorithm.scale: structural" in capsys.readouterr().out


# --- runs that follow each other ---------------------------------------------------------------------------


def luck(completion, reference):
    """Pay the right answer, and completions that their text alone decides."""
    return float(str(reference) in completion or zlib.crc32(completion.encode()) % 2)


def hosted(folder):
    """Return a config of a task that the host verifies."""
    lines = [json.dumps({"question": f"{i} + {i}?", "answer": str(2 * i)}) for i in range(16)]
    (folder / "sums.jsonl").write_text("\n".join(lines))
    reward = "tests.run.members.test_many:luck"
    task = f"jsonl({str(folder / 'sums.jsonl')!r}, reward={reward!r}, heldout=0.25, completion_length=8)"
    return config(task=task, verifier__workers=1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["task", "world"])
def test_seeds_of_host_rows_share_a_program_and_are_runs_alone_bit_for_bit(kind, tmp_path, capsys):
    c = hosted(tmp_path) if kind == "task" else test_host_driver.training(algorithm="w_reinforce()")
    fields, devices = {"algorithm.negative": [0.5, 1.0], "seed": [0, 1]}, jax.devices()[:1]
    out = rljax.train_many(c, fields, tmp_path / "many", devices=devices)
    assert capsys.readouterr().out.count("one run after another: their rows come through the host") == 1
    first, second, other, _ = (m.result.program.steps[-1] for m in out)
    assert first is second and first is not other and first.update._cache_size() == 1
    for member in out[1:3]:
        place = tmp_path / "alone" / member.name
        one = alone(member, c, place)
        assert distance(one, member.result) == 0.0 < distance(one, out[0].result)
        names = ["metrics.jsonl", "config.json", "verdicts.jsonl" if kind == "task" else "turns.jsonl"]
        assert all((place / name).read_bytes() == (member.workdir / name).read_bytes() for name in names)


@pytest.mark.full
def test_seeds_of_stored_rows_compute_their_own_behaviour_log_probs(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i % 8}+1=", "completion": str((i + i // 8) % 10), "reward": i % 2} for i in range(32)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {"model__width": 8, "model__heads": 1, "model__kv_heads": 1, "model__hidden": 8, "mesh__data": 1}
    c = tiny.config("aipo()", seam__source=f"stored({str(path)!r})", batch__prompts=4, log__rollouts=0, **small)
    first, second = rljax.train_many(c, {"seed": [0, 1]}, tmp_path / "many", progress=False, devices=jax.devices()[:1])
    one = alone(second, c, tmp_path / "alone")
    assert distance(one, second.result) == 0.0 < distance(one, first.result)
    assert (second.workdir / "metrics.jsonl").read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()
    assert (second.workdir / "stored-main.npz").exists()
