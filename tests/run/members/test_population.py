"""Populations: who continues whom, phases as rounds, and rounds that fork the round before."""

import json

import jax
import numpy as np
import pytest

from rljax.config import resolve
from rljax.run.members import many, population
from tests.support import tiny

RATE = "phase.main.optimizer.learning_rate"


def config():
    c = tiny.config("grpo(kl=0.01)", mesh__data=1)
    c.phase.main.optimizer = "adamw(learning_rate=1e-3)"
    return c


def test_the_worst_continue_from_the_best():
    values = [{"a": 1.0 + m, "b": 10.0} for m in range(8)]
    scores = [0.3, 0.9, -np.inf, 0.5, 0.8, 0.1, 0.4, 0.6]
    best, worst, drawn = {1, 4}, {2, 5}, set()
    for seed in range(20):
        parents, new = population.select(scores, values, 0.25, (0.5, 3.0), np.random.default_rng(seed))
        for m, (parent, numbers) in enumerate(zip(parents, new, strict=True)):
            if m not in worst:
                assert parent == m and numbers == values[m]
                continue
            assert parent in best
            factors = {f: numbers[f] / values[parent][f] for f in numbers}
            assert {*factors.values()} <= {0.5, 3.0}
            drawn.add((parent, *factors.values()))
    assert len(drawn) == 2 * 2 * 2  # parents, and a factor for each number
    for seed in range(20):  # more have failed than are replaced: none of them stays, and none is continued
        scores = [0.5, -np.inf, -np.inf, 0.4]
        assert population.select(scores, values[:4], 0.25, (2.0,), np.random.default_rng(seed))[0] == (0, 0, 0, 3)
    assert population.select([1.0, 0.0], values[:2], 0.25, (2.0,), np.random.default_rng(0))[0] == (0, 0)


def test_rounds_are_phases_that_continue():
    first, *later = resolve.run(population.in_rounds(config(), 3, 5)).phases
    assert [p.name for p in (first, *later)] == ["main_1", "main_2", "main_3"]
    assert [(p.first, p.last) for p in (first, *later)] == [(0, 5), (5, 10), (10, 15)]
    assert first.start.reset_optimizer and first.start.reference == "start"
    assert all(not p.start.reset_optimizer and p.start.reference == "keep" for p in later)
    assert not any("has no effect" in w and "main" in w for p in (first, *later) for w in p.warnings)
    for given in ({"share": 0.6}, {"factors": ()}, {"rounds": 0}):
        with pytest.raises(ValueError, match=r"population\.evolve: 2 members, share="):
            population.evolve(config(), {RATE: [1e-3, 2e-3]}, "unused", **{"rounds": 1, "steps": 1, **given})
    with pytest.raises(ValueError, match="different numbers of values"):
        population.evolve(config(), {RATE: [1e-3, 2e-3], "algorithm.kl": [0.1]}, "unused", rounds=1, steps=1)


def test_numbers_that_a_field_refuses_are_not_allowed():
    assert population._allowed(config(), {RATE: 2e-3, "sampler.top_p": 0.9})
    assert not population._allowed(config(), {RATE: 2e-3, "sampler.top_p": 1.125})


@pytest.mark.full
def test_a_population_forks_its_best_members(tmp_path):
    values = {RATE: [1e-3, 2e-3, 3e-3]}

    def evolved():
        return population.evolve(
            config(), values, tmp_path, rounds=2, steps=2, factors=(2.0,), progress=False,
            score=lambda result: -result.program.config.seed,
        )  # fmt: skip

    first, second = evolved()
    assert first.parents == () and second.parents == (0, 1, 0) and first.scores == (0, -1, -2)
    assert [x[RATE] for x in second.values] == [1e-3, 2e-3, 2e-3]
    written = json.loads((tmp_path / "population.json").read_text())
    assert [m["parent"] for m in written[1]["members"]] == [0, 1, 0]
    # a member that continues itself is the run of both rounds at once
    fields = [
        {"seed": m, **{f"phase.main_{n}.optimizer.learning_rate": values[RATE][m] for n in (1, 2)}} for m in (0, 1)
    ]
    whole = many.train_many(population.in_rounds(config(), 2, 2), fields, progress=False)
    for run, alone in zip(second.runs, whole, strict=False):
        assert tiny.equal(run.result.state.params, alone.result.state.params)
        assert tiny.equal(run.result.state.opt_state, alone.result.state.opt_state)
    again = evolved()[1]  # nothing is left to run
    assert [r.scores for r in (second, again)] == [second.scores] * 2
    assert tiny.equal(jax.device_get(again.runs[2].result.state.params), second.runs[2].result.state.params)
