"""Studies on the shipped base: estimates, comparisons at equal KL and the page from given results, and tiny runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import arms
from experiments.reasoning import page, pieces, runs, study
from experiments.reasoning.scale import bases
from experiments.reasoning.scale import study as scale
from rljax import types
from rljax.run.evaluation import evaluate, intervals
from tests.support import tiny

SIZE = runs.Size(measured=(4, 8), prompts=4, tries=16)
TOPIC = page.Topic(
    ("a", "b"),
    (
        page.Claim("a above b", "a", "b", "pass@64", matched="kl"),
        page.Claim("a above the base", "a", "base", "pass@1"),
        page.Claim("a writes less", "a", "b", "length", below=True),
        page.Claim("c above b", "c", "b", "pass@1"),
    ),
)


def at(first, right, kl, length=9.0, entropy=0.1):
    return {"first": arms.pack(first), "right": arms.pack(right), "kl": kl, "entropy": entropy, "length": length}


def records():
    """Return two seeds of a base that solves two of four prompts, and of arms a and b, of which a moves half as far."""
    made = []
    for seed in (0, 1):
        base = {"arm": "base", "seed": seed, "cpu_seconds": 60, "at": {"0": at([1, 200, 0, 0], [8, 0, 0, 0], 0.0)}}
        of_a = {"4": at([1, 9, 0, 0], [12, 1, 0, 0], 0.1), "8": at([1, 9, 5 + seed, 0], [16, 1, 1, 0], 0.2, 8.0 - seed)}
        of_b = {"4": at([1, 0, 0, 0], [12, 0, 0, 0], 0.1), "8": at([1, 0, 5, 0], [16, 0, 1, 0], 0.3)}
        made += [base] + [
            {"arm": arm, "seed": seed, "rate": 1e-4, "cpu_seconds": 30, "at": of, "curves": {}}
            for arm, of in (("a", of_a), ("b", of_b))
        ]
    return made


def test_values_are_interpolated_where_a_path_first_reaches_it():
    path = [(0.0, 0.0), (0.2, 1.0), (0.1, 5.0), (0.4, 2.0)]
    assert page.at(path, 0.05) == 0.25 and page.at(path, 0.2) == 1.0
    assert page.at(path, 0.3) == pytest.approx(5 - 2)  # of the last segment, two thirds of the way from 5 to 2
    assert page.at(path, 9.0) == 2.0
    assert page.matched([(0.0, 0.0), (0.1, 3.0)], path) == (3.0, 0.5)
    back = [(0.0, 0.0), (0.4, 2.0), (0.3, 4.0)]  # it ends nearer than it was: its last value, not that of the way there
    assert page.matched(back, [(0.0, 0.0), (0.6, 2.0)]) == (4.0, 1.0)
    assert page.matched([(0.0, 7.0), (-0.1, 3.0)], path) == (7.0, 0.0)  # one has spent nothing: both where they begin


def test_arms_are_compared_at_the_kl_that_both_reach():
    results = page.Results(records(), SIZE)
    first, second = results.pairs(TOPIC.claims[0])
    assert first[0] == 3 / 4  # the last value of a, which ends at 0.2
    assert second[0] == pytest.approx(1.5 / 4)  # b between its measurements at 0.1 and at 0.3
    most = page.Claim("", "a", "b", "pass@256", matched="kl")  # only base and end have it: b is two thirds of the way
    assert results.pairs(most)[1][0] == pytest.approx(2 / 4)
    assert results.difference(TOPIC.claims[1]).mean == pytest.approx((18 - 8) / 16 / 4)
    assert results.difference(TOPIC.claims[2]).mean == pytest.approx(-1.5)
    assert results.difference(TOPIC.claims[3]) is None


def test_a_law_of_the_entropy_predicts_the_end_from_the_beginning():
    def run(arm, seed, *points):  # pass@1 times 64 and exp(entropy), which are linear in each other along a law
        at_step = {str(4 * n): at([1] * 4, [right, 0, 0, 0], n, 9.0, np.log(x)) for n, (right, x) in enumerate(points)}
        if arm != "base":
            del at_step["0"]
        return {"arm": arm, "seed": seed, "rate": 1e-4, "cpu_seconds": 1, "at": at_step, "curves": {}}

    made = []
    for seed in (0, 1):
        made += [run("base", seed, (2, 1.10)), run("a", seed, (2, 1.10), (8, 1.07), (12, 1.05))]
        made += [run("b", seed, (2, 1.10), (8, 1.07), (15 + seed, 1.06))]  # the law says 10
    lines = page.law(page.Results(made, SIZE), TOPIC).splitlines()
    gaps = [[float(cell.split()[0]) if cell.strip() else None for cell in line.split("|")[3:5]] for line in lines[2:]]
    assert gaps[0] == [pytest.approx(0.0, abs=0.05), None]
    assert gaps[1] == pytest.approx([100 * 5.5 / 64] * 2, abs=0.05)  # a is at 10 where exp(entropy) is 1.06


def test_the_page_says_what_has_not_run(tmp_path):
    results = page.Results(records(), SIZE)
    written = page.text(results, TOPIC)
    rows = {line.split("|")[1].strip(): line for line in written.splitlines() if line.startswith("|")}
    assert "37.5" in rows["a above b (primary)"] and "not before all seeds" in rows["a above b (primary)"]
    five = [{**r, "seed": seed} for seed in range(5) for r in records()[:3]]
    decided = page.claims(page.Results(five, SIZE), TOPIC).splitlines()[3]
    assert decided.endswith("| 5 | inconclusive |")  # equal values have no interval
    assert "not run yet" in rows["c above b"]
    assert "4 runs and 2 measurements of the base, 0.1 hours" in written
    half, last = [[c.strip() for c in line.split("|")] for line in written.splitlines() if line.startswith("| a |")]
    assert half[4:6] == ["4", "0.100"] and half[10] == "" and half[11:13] == ["25.0", "0.0"]  # in 64 samples
    assert last[4:6] == ["8", "0.200"] and last[10] == "75.0" and last[11:13] == ["25.0", "0.0"]  # in 256
    page.draw(results, TOPIC, tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 10_000


def test_runs_of_another_size_are_refused(tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"size": {"prompts": 3}, "runs": []}))
    with pytest.raises(ValueError, match=r"runs of another size \(measured, prompts, .*Set --results"):
        runs.Runs(runs.QUICK, file)


def test_the_shipped_results_are_those_of_the_page():
    shipped = runs.Runs(runs.Size(), study.RESULTS)
    for name, topic in study.TOPICS.items():
        written = page.text(page.Results(shipped.records, shipped.size), topic)
        assert written in (study.RESULTS.parent / study.PAGES / name / "README.md").read_text()
    sizes = {width: scale.stored(width, bases.FOLDER) for width in scale.WIDTHS}
    assert scale.text(sizes) in (bases.FOLDER / "README.md").read_text()


def test_a_line_over_the_size_is_extrapolated_unless_it_bends_or_its_interval_is_wide():
    def fitted(bend, noise):
        seeds = [{s: y + noise * s for s in (-1, 0, 1)} for y in (0.1, 0.2 + bend, 0.3)]
        return scale.trend(dict(zip(scale.WIDTHS, seeds, strict=True)))

    slope, curvature, value = fitted(0.0, 0.01)
    assert slope.mean == pytest.approx(0.1) and curvature.mean == pytest.approx(0.0) and slope.count == 3
    assert value.mean == pytest.approx(0.4)
    assert scale.predicted((slope, estimate(0.0, 0.1), value)) == arms.text(value)
    assert scale.predicted((slope, estimate(0.1, 0.09), value)) == "refused: not a line"
    assert scale.predicted((slope, estimate(0.0, 0.1), fitted(0.0, 0.05)[2])) == "refused: too wide"
    assert fitted(-0.05, 0.0)[1].mean == pytest.approx(0.1)
    assert scale.trend({width: {0: 0.1} for width in scale.WIDTHS}) is None


def estimate(mean, half):
    return intervals.Estimate(mean, mean - half, mean + half, 3, "seed", 2)


def test_rates_are_inversely_proportional_to_the_width_and_a_base_that_is_absent_is_refused(tmp_path):
    assert scale.arm("NSR", 64).rate == 4 * scale.arm("NSR", 256).rate == 4 * study.ARMS["NSR"].rate
    results = {width: scale.stored(width, tmp_path) for width in scale.WIDTHS}
    assert [len(results[width].records) > 0 for width in scale.WIDTHS] == [False, False, True]
    assert scale.text(results).count("not run yet") > len(scale.TRENDS)
    scale.draw(results, tmp_path / "sizes.png")
    with pytest.raises(ValueError, match="the base of width 32 is not here"):
        bases.model(32)


def test_few_problems_are_those_of_the_first_step_whose_rewards_deviate_most():
    source, key = pieces.few(2), jax.random.key(0)
    offered = jnp.arange(10, 14)
    reward = jnp.array([1.0, 1, 0, 1, 0, 0, 1, 0])  # of four groups of two rows
    group = jnp.repeat(jnp.arange(4), 2)
    rows = types.Rollout(jnp.ones((8, 3)), reward, group).replace(index=offered[group], valid=jnp.ones(8))
    held = source.init(rows, None)
    np.testing.assert_array_equal(source.choose(held, None, offered, key).index, offered)
    trained, held = source.select(rows, held, 4, key)
    assert not trained.valid.any()
    np.testing.assert_array_equal(source.choose(held, None, offered + 4, key).index, [11, 13, 11, 13])
    trained, again = source.select(rows.replace(reward=reward[::-1]), held, 4, key)
    assert trained.valid.all() and (again == held).all()


@pytest.mark.full
def test_prompts_are_sampled_until_solved_as_an_evaluation_samples_them():
    program = tiny.program()
    step = program.steps[0]
    params = step.begin(None, program.key, None).params["policy"]
    size = runs.Size(tries=8, batches=((4, 8), (2, 40)), few=24)
    key = jax.random.fold_in(program.key, evaluate._KEY)
    first, right = runs.solve(step, params, key, range(2, 12), 128, size)
    tried = []
    for part in evaluate.parts_of(np.arange(2, 12), 144):
        rows, keys = evaluate.rows_of(part, 144, program.key)
        out = step.generate(params, step.setup.task.prompts(part, "heldout"), keys, 144, step.setup.settings.sampler)
        tried.append(np.asarray(step.verify(rows, "heldout", out.token, out.mask).reward).reshape(-1, 144) > 0.99)
    correct = np.concatenate(tried)[:10]
    assert right.tolist() == correct[:, :8].sum(axis=1).tolist()
    expected = [1 + np.argmax(row) if row[:128].any() else 0 for row in correct]
    assert first.tolist() == expected and 0 < np.count_nonzero(first) and max(first) > 8


@pytest.mark.full
def test_a_topic_runs_and_goes_on_where_it_was_ended(tmp_path, capsys):
    file = tmp_path / "results.json"
    command = ["negative", "--quick", "--results", str(file), "--arms", "NSR", "--seeds"]
    study.main([*command, "0"])
    first = json.loads(file.read_text())["runs"]
    assert [r["arm"] for r in first] == ["base", "NSR"]
    kl = [x["kl"] for r in first for x in r["at"].values()]  # of the base rounding alone
    assert kl[2] > kl[1] > 1e-6 > kl[0]
    capsys.readouterr()
    study.main([*command, "0", "1"])
    assert capsys.readouterr().out.splitlines()[:2] == ["base, seed 1", "NSR, seed 1"]
    assert json.loads(file.read_text())["runs"][:2] == first
    with pytest.raises(SystemExit):
        study.main([*command[:-2], "NRS"])
    assert "'NRS' is not one of GRPO, NSR" in capsys.readouterr().err
