"""Traces hold the chosen steps, out-of-memory errors are explained, and the clock counts all time exactly once."""

import collections
import gzip
import json
import re
import time

import jax
import jax.numpy as jnp
import pytest

from rljax.config import resolve
from rljax.host import profiles
from rljax.run import loop
from rljax.transforms import define
from tests.support import tiny

ONE = jax.devices()[:1]


@define.advantage
def devour(rollout):
    """Keep the mask if the least of four trillion random numbers, sorted, is below 2: no machine has room for them."""
    numbers = jax.random.uniform(jax.random.key(0), (1 << 42,)) + rollout.mask[0, 0]
    return rollout.replace(mask=rollout.mask * (jnp.sort(numbers)[0] < 2))


def short(**fields):
    """Return the config of a run that compiles fastest: demonstrations, no evaluation."""
    return tiny.config("sft()", **fields)


# --- which steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps 10-12", [10, 11, 12]),
        ("step 10", [10]),
        ("steps 1 - 2", [1, 2]),
        (" steps 20-20 ", [20]),
        ("", []),
    ],
)
def test_steps_are_read(text, expected):
    assert list(profiles.steps(text, last=20)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10-12", "expected 'steps FIRST-LAST' or 'step NUMBER'"),
        ("steps 10-", "expected 'steps FIRST-LAST'"),
        ("step ten", "expected 'steps FIRST-LAST'"),
        ("steps 12-10", "must be an ascending range within the run's steps, 1 to 20"),
        ("step 0", "1 to 20"),
        ("steps 19-21", "1 to 20"),
    ],
)
def test_a_malformed_profile_is_refused(text, message):
    with pytest.raises(ValueError, match=f"config.profile={text!r}.*{re.escape(message)}"):
        profiles.steps(text, last=20)


def test_a_config_is_checked_against_the_run():
    with pytest.raises(ValueError, match=r"config\.profile='steps 2-3'.*1 to 2"):
        resolve.phases(tiny.config(profile="steps 2-3"))


# --- traces --------------------------------------------------------------------------------------


def events(folder):
    """Return a trace's event names with their counts, and the numbers of its steps."""
    (file,) = (folder / "profile").rglob("*.xplane.pb")
    names, steps = collections.Counter(), []
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for event in line.events:
                names[event.name] += 1
                steps += [dict(event.stats)["step_num"]] if event.name == "step" else []
    return names, steps


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the work directory of a run of 4 steps, of which steps 2 and 3 are traced."""
    folder = tmp_path_factory.mktemp("run")
    loop.train(short(phase__main__steps=4, profile="steps 2-3"), folder, progress=False, devices=ONE)
    return folder


@pytest.mark.full
def test_a_run_traces_the_chosen_steps(run):
    names, steps = events(run)
    assert steps == [2, 3]
    assert names["PjitFunction(fused)"] >= 2  # the program of a step
    assert any(name.startswith("jit_") or "ThunkExecutor" in name for name in names)  # its execution
    assert not [name for name in names if name.startswith("$")]  # no Python calls


class Watched:
    """An array-like value that counts calls of ``block_until_ready``."""

    waits = 0

    def block_until_ready(self):
        """Count the wait."""
        self.waits += 1
        return self


def test_only_traced_steps_are_waited_for(tmp_path):
    argument, result = Watched(), Watched()
    tracer = profiles.Tracer(range(5, 7), tmp_path)
    waits = []
    for number in range(4, 9):
        assert tracer.step(number, lambda x: (x, result)[1], argument) is result
        waits.append((argument.waits, result.waits))
    assert waits == [(0, 0), (1, 0), (1, 1), (1, 1), (1, 1)]  # steps 4 to 8
    assert events(tmp_path)[1] == [5, 6]


def test_a_resumed_or_stopped_run_traces_the_steps_it_runs(tmp_path):
    tracer = profiles.Tracer(range(2, 9), tmp_path)
    tracer.step(4, jnp.sin, 1.0)  # resumed after step 3
    tracer.close()  # stopped after step 4
    tracer.close()
    assert events(tmp_path)[1] == [4]
    profiles.Tracer(range(1, 3), None).step(1, jnp.sin, 1.0)  # no work directory, no trace


# --- memory --------------------------------------------------------------------------------------


def test_exhausted_memory_is_explained(tmp_path):
    arrays = [jnp.zeros((1237, 11)) for _ in range(3)]  # 54,428 bytes each; a shape used nowhere else
    with pytest.raises(profiles.OutOfMemory) as caught, profiles.explain_out_of_memory(tmp_path, lambda: "step 3"):
        jnp.zeros((1 << 45,)).block_until_ready()
    message = str(caught.value)
    file = tmp_path / "profile" / "memory-step-3.prof"
    assert "\n" not in message
    assert message.startswith("out of memory in step 3: RESOURCE_EXHAUSTED: Out of memory alloc")
    assert f"Memory profile: {file}." in message
    assert b"space" in gzip.decompress(file.read_bytes())  # pprof's format: a table of strings and counts
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    assert "3 x float32[1237,11] 0.1 MiB" in profiles.live_arrays(1000) and len(arrays) == 3


def test_bytes_are_those_of_one_device():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.device_put(jnp.zeros((1 << 20, 3)), jax.sharding.NamedSharding(mesh, jax.P("x")))
    assert "1 x float32[1048576,3] 1.5 MiB" in profiles.live_arrays(1000)
    split.delete()


def test_other_errors_pass():
    with pytest.raises(jax.errors.JaxRuntimeError), profiles.explain_out_of_memory(None, lambda: "step 1"):
        jax.jit(lambda x: jax.pure_callback(lambda y: 1 / 0, x, x))(jnp.float32(1)).block_until_ready()
    with pytest.raises(KeyError), profiles.explain_out_of_memory(None, lambda: "step 1"):
        raise KeyError("RESOURCE_EXHAUSTED")


@pytest.mark.full
def test_a_run_that_exhausts_memory_names_the_largest_arrays(tmp_path):
    config = short(seam__advantage="+ tests.host.test_profile.devour()")
    with pytest.raises(profiles.OutOfMemory, match=r"out of memory in step 1: .*memory-step-1\.prof\. Largest"):
        loop.train(config, tmp_path, progress=False, devices=ONE)
    assert (tmp_path / "profile" / "memory-step-1.prof").stat().st_size > 0


# --- time ----------------------------------------------------------------------------------------


def test_the_clock_counts_every_moment_once():
    clock = profiles.Clock()
    began = time.perf_counter()
    with clock.spent("outer"):
        time.sleep(0.02)
        with clock.spent("inner"):
            time.sleep(0.03)
        time.sleep(0.01)
    whole = time.perf_counter() - began
    time.sleep(0.01)  # outside any activity
    clock.move(0.005, "outer", "moved")
    spent = clock.take(2)
    assert set(spent) == {"outer", "inner", "moved"} and spent["moved"] == 0.0025
    assert spent["inner"] >= 0.015 and spent["outer"] + spent["moved"] >= 0.015
    assert sum(spent.values()) == pytest.approx(whole / 2, abs=1e-3)
    assert clock.take(1) == {}


@pytest.mark.full
def test_a_run_writes_its_timings(run):
    rows = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert {"dispatch", "wait", "log"} <= set(row)
        parts = sum(row.get(name, 0.0) for name in ("dispatch", "wait", "log", "checkpoint"))
        assert 0 < parts <= row["seconds"]
    logged = [set(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert not {"dispatch", "wait"} & set.union(*logged)  # metrics hold no wall-clock values


@pytest.mark.full
def test_a_host_task_splits_rollout_verdicts_and_update(tmp_path):
    lines = [json.dumps({"question": f"{i} + {i}?", "answer": f"#### {2 * i}"}) + "\n" for i in range(16)]
    (tmp_path / "train.jsonl").write_text("".join(lines[:8]))
    (tmp_path / "test.jsonl").write_text("".join(lines[8:]))
    task = f"gsm8k({str(tmp_path)!r}, prompt_length=48, completion_length=8)"
    config = tiny.config(task=task, log__rollouts=0, verifier__workers=1)
    loop.train(config, tmp_path / "run", progress=False, devices=ONE)
    rows = [json.loads(line) for line in (tmp_path / "run" / "timings.jsonl").read_text().splitlines()]
    for row in rows:
        assert {"rollout", "verify", "update", "dispatch"} <= set(row)
        assert min(row["rollout"], row["verify"], row["update"]) >= 0
        assert sum(v for k, v in row.items() if k in ("rollout", "verify", "update", "dispatch")) <= row["seconds"]
