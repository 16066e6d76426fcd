"""The study of negative reinforcement: its page from given results, and the runs that share a program."""

import json

import numpy as np
import pytest

from experiments import arms
from experiments.nsr import families, page, study
from rljax.run.evaluation import evaluate, passk
from rljax.run.members import cohorts, sweep
from tests.support import tiny


def run(arm, seed, correct, stage="main", rate=1e-3, **fields):
    """Return the record of a run with 256 samples of each prompt."""
    of = {"stage": stage, "family": "sums", "arm": arm, "seed": seed, "rate": rate, "tries": 256}
    measured = {"correct": arms.pack(correct), "entropy": 0.5, "distinct": 2.0, "length": 9.0, "cpu_seconds": 6.0}
    return of | measured | {"curves": {"entropy": [0.6, 0.5]}} | fields


def records(*gaps):
    """Return bases with 64 right samples of each of two prompts, and an arm with as many more on each seed."""
    bases = [run("base", seed, [64, 64], "base") for seed in range(len(gaps))]
    return [*bases, *(run("NSR", seed, [64 + gap, 64 + gap]) for seed, gap in enumerate(gaps))]


def test_counts_survive_packing():
    counts = [0, 256, 17, 4095]
    assert arms.unpack(arms.pack(counts)).tolist() == counts


def test_the_interval_covers_seeds_and_prompts():
    seeds = page.contrast(records(32, 0, 0, 0), "sums", "NSR", "base", 1)
    assert seeds.mean == pytest.approx(32 / 256 / 4) and seeds.low < 0 < seeds.high
    one = [run("base", s, [64, 64], "base") for s in (0, 1)] + [run("NSR", s, [128, 64]) for s in (0, 1)]
    prompts = page.contrast(one, "sums", "NSR", "base", 1)
    assert prompts.mean == pytest.approx(0.125) and prompts.low < 0 < prompts.high  # the gain is on one of two prompts
    assert page.contrast(one, "sums", "NSR", "PPO", 1) is None
    whole = page.contrast(one, "sums", "NSR", "base", 0)
    expected = passk.pass_at_k([128, 64], 256, page.KS).mean() - passk.pass_at_k([64, 64], 256, page.KS).mean()
    assert whole.mean == pytest.approx(expected)


def test_the_rate_of_an_arm_is_that_of_the_largest_pass_at_1():
    tuned = [run("NSR", s, [c, c], "tune", r) for s in (100, 101) for r, c in ((1e-4, 20), (1e-3, 30), (3e-4, 30))]
    assert page.choose(tuned, "sums", "NSR") == 3e-4  # the lower of two equals
    failed = [*tuned, {**tuned[-1], "seed": 102, "failure": "not finite"}]
    assert page.choose(failed, "sums", "NSR") == 1e-3
    with pytest.raises(ValueError, match="PSR on sums: no learning rate has finished"):
        page.choose(tuned, "sums", "PSR")


def test_the_smallest_difference_is_that_of_a_paired_t_test():
    # t_{0.975, 7} = 2.365, t_{0.8, 7} = 0.896; the deviation of -1 and 1 is sqrt(2)
    assert page.smallest([-1.0, 1.0], 8) == pytest.approx((2.365 + 0.896) * 2**0.5 / 8**0.5, rel=1e-3)


def test_pages_say_what_has_not_run_and_lists_what_failed(tmp_path):
    size = families.Size(families=("sums",), arms=("NSR", "PSR"), varied=())
    failed = {**run("PSR", 0, [1, 1]), "failure": "not finite"}
    text = study.write([*records(16, 16, 15), failed], size, tmp_path)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "6.1" in rows["NSR"] and "not run yet" in rows["PSR"]
    assert "not run yet" in rows["NSR is better than PPO at k = 256"]
    assert rows["NSR raises pass@1 (primary)"].count("holds") == 1
    assert "main, sums, PSR, seed 0: not finite" in text
    assert json.loads((tmp_path / "results.json").read_text())["runs"][0]["arm"] == "base"
    assert all((tmp_path / f"{name}.png").exists() for name in ("passk", "arms", "entropy"))


def test_arms_sample_equally_and_lambdas_share_a_program(tmp_path):
    size = families.Size()
    shared = [x for x in study.Study(size, tmp_path).programs_of(families.ARMS) if len(x) > 1]
    assert [len(arms) for arms in shared] == [len(families.LAMBDAS)]
    for arm in families.ARMS.values():
        sampled = size.prompts // arm.oversample * arm.oversample * size.samples
        assert sampled == size.prompts * size.samples and sampled % (arm.oversample * arm.minibatches) == 0
    values = families.LAMBDAS[:2]
    runs = [
        {"seed": n, "phase.main.optimizer.learning_rate": r, "algorithm.positive": x}
        for n, (r, x) in enumerate(zip(size.rates[:2], values, strict=True))
    ]
    c = families.config(families.FAMILIES["sums"], families.ARMS["W-REINFORCE 0.1"], size)
    (cohort,) = cohorts.plan(sweep.expand(runs, c))
    assert cohort.traced["algorithm.positive"] == values


@pytest.mark.full
def test_every_arm_resolves():
    for name in families.Size().varied:
        for arm in families.varied(name).values():
            sweep.expand([{"seed": 0}], families.config(families.FAMILIES["sums"], arm, families.Size()))
    for arm in families.ARMS.values():
        sweep.expand([{"seed": 0}], families.config(families.FAMILIES["sums"], arm, families.Size()))


def test_a_work_directory_keeps_its_size(tmp_path):
    study.claim(tmp_path, families.QUICK)
    study.claim(tmp_path, families.QUICK)
    with pytest.raises(ValueError, match=r"another size \(seeds"):
        study.claim(tmp_path, families.Size())
    kept = study.Run("main", "sums", "NSR", 3, 1e-3).file(tmp_path)
    study.store(kept, run("NSR", 3, np.array([1, 2]).tolist()))
    assert [r["seed"] for r in study.stored(tmp_path)] == [3]


@pytest.mark.full
def test_a_measurement_counts_what_an_evaluation_counts():
    program = tiny.program()
    step = program.steps[0]
    params = step.begin(None, program.key, None).params["policy"]
    record = evaluate.evaluate(program, params, name="x", step=0, prompts=10, samples=128)
    measured = study.measure(step, params, program.config.seed, range(10), 128)
    correct = arms.unpack(measured["correct"])
    assert correct.tolist() == record["correct"] and correct.sum() > 0  # by chance
    assert measured["length"] == pytest.approx(record["length"])
    assert 0 < measured["distinct"] <= correct.mean()
    assert 0 < measured["entropy"] <= np.log(step.setup.decoder.architecture.vocabulary) + 1e-3
