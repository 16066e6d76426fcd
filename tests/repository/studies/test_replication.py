"""The study of replication: its page from given and stored results without torch, and the verifier of both sides."""

import json
from typing import Any

import numpy as np
import pytest

from experiments import arms
from experiments.replication import page, study
from rljax.run.evaluation import intervals


def run(side, seed, correct):
    """Return the record of a free run with 4 samples of each prompt."""
    return {"part": "free", "side": side, "seed": seed, "correct": arms.pack(correct), "greedy": 0.5}


def given(norm, last, control):
    """Return the record of identical rollouts, with differences of the gradient norm and of the parameters."""
    ours = {"loss": 0.1, "kl": 0.02, "clipped": 0.01, "gradient norm": 2.0}
    theirs = ours | {"gradient norm": 2.0 * (1 + norm)}
    of = {"part": "identical", "setting": "x", "rljax": [ours], "TRL": [theirs]}
    return of | {k: [{"largest": x, "relative": x}] for k, x in (("apart", last), ("control", control))}


def test_the_contrast_is_trl_minus_rljax_paired_by_seed_and_prompt():
    # seeds differ by 1 and 0 of 4 samples on each of two prompts: mean 1 / 8, t_{0.975, 1} = 12.7 makes it wide
    records = [run("rljax", s, [2, 2]) for s in (0, 1)] + [run("trl", 0, [3, 3]), run("trl", 1, [2, 2])]
    x = page.contrast(records)
    assert x is not None and x.mean == pytest.approx(1 / 8) and x.low < 0 < x.high
    assert page.verdict(x) == "inconclusive" and page.contrast(records[:3]) is None


@pytest.mark.parametrize(
    ("low", "high", "said"), [(-0.9, 0.9, "holds"), (-0.9, 1.1, "inconclusive"), (1.1, 1.2, "refuted")]
)
def test_a_difference_within_the_bound_holds_and_one_beyond_it_is_refuted(low, high, said):
    ends = ((low + high) / 2 * page.BOUND, low * page.BOUND, high * page.BOUND)
    assert page.verdict(intervals.Estimate(*ends, len(page.SEEDS))) == said
    assert page.verdict(intervals.Estimate(*ends, len(page.SEEDS) - 1)) == "inconclusive"  # as declared, or not at all


def test_rounding_is_a_small_first_gradient_and_a_drift_like_trls_own():
    assert page.same(given(0.5 * page.FIRST, 1e-3, 1e-3)) == "holds"
    assert page.same(given(2 * page.FIRST, 1e-3, 1e-3)) == "refuted"
    assert page.same(given(0.0, 2 * page.LAST, 1.0)) == "refuted"
    assert page.same(given(0.0, 1e-3, 1e-3 / (2 * page.TIMES))) == "refuted"


def test_the_page_is_that_of_the_stored_results():
    written = (study.FOLDER / "README.md").read_text()
    assert page.tables(json.loads((study.FOLDER / "results.json").read_text())) in written


@pytest.mark.full
def test_the_reward_that_trl_is_given_is_the_verifiers():
    run = study.program(study.FREE, 0)
    task: Any = run.steps[0].setup.task
    index = np.arange(3, dtype=np.int32)
    token, mask = map(np.asarray, task.solutions(index, "train"))
    right = [t[m > 0].tolist() for t, m in zip(token, mask, strict=True)]
    assert study.judge(run)(index.tolist(), right) == [1.0] * 3
    assert study.judge(run)(index.tolist(), [[*r[:-2], r[-1]] for r in right]) == [0.0] * 3  # without the answer
