"""Studies of arms: what intervals decide, configs of all arms, pages made of stored results, and one short study."""

import dataclasses
import importlib
import json
import pathlib

import pytest

from experiments import arms
from rljax.run.evaluation import intervals
from rljax.run.members import sweep

ROOT = pathlib.Path(__file__).parents[3]
PLACE = ROOT / "experiments"
FOLDERS = sorted(path.parent for path in PLACE.glob("**/study.py") if "arms.main(STUDY" in path.read_text())


def name_of(folder):
    return folder.relative_to(PLACE).as_posix()


def study(folder):
    return importlib.import_module(f"experiments.{name_of(folder).replace('/', '.')}.study").STUDY


def record(arm, seed, after, before=0.2, entropy=(0.5, 0.1), rate=1e-3):
    """Return a record of a run with pass@1 ``after``, from a base with ``before``."""
    of = {"arm": arm, "seed": seed, "rate": rate, "base": {"1": before}, "result": {"1": after}}
    return of | {"curves": {"entropy": [entropy[0]] * (arms.BINS - arms.LAST) + [entropy[1]] * arms.LAST}}


RECORDS = [record("one", s, 0.4 + 0.1 * s) for s in (0, 1)] + [record("other", s, 0.5 + 0.2 * s) for s in (0, 1)]


def test_quantities_are_of_the_end_of_a_run_and_differences_are_paired_by_seed():
    assert arms.of(RECORDS, "one", 1e-3, "pass@1") == {0: 0.4, 1: 0.5}
    assert arms.of(RECORDS, "base", 1e-3, "pass@1") == {0: 0.2, 1: 0.2}
    assert arms.value(RECORDS[0], "entropy") == pytest.approx(0.1)
    assert arms.value(RECORDS[0] | {"length": 7.0}, "length") == 7.0
    got = arms.difference(RECORDS, arms.Claim("", "other", "one", "pass@1"), [1e-3])
    expected = intervals.difference({0: 0.4, 1: 0.5}, {0: 0.5, 1: 0.7}, bounds=intervals.UNIT)
    assert got == expected and got.over == "paired seed"
    failed = [r | ({"failure": "not finite"} if (r["arm"], r["seed"]) == ("one", 1) else {}) for r in RECORDS]
    assert arms.difference(failed, arms.Claim("", "other", "one", "pass@1"), [1e-3]) is None
    counts = [r | {"result": {"1": 0.5, "2": 0.6}, "correct": arms.pack([r["seed"], 2])} for r in RECORDS]
    assert arms.of(counts, "one", 1e-3, "pass@1")[1].tolist() == [0.5, 1.0]


def estimate(mean, half):
    """Return an estimate with five degrees of freedom."""
    return intervals.Estimate(mean, mean - half, mean + half, 6, "paired seed", 5)


def test_the_first_claim_is_primary_and_the_others_are_corrected():
    x = estimate(0.02, 0.019)  # p is slightly below 5 %
    assert 0.04 < x.p() < 0.05 < x.p(0.002)
    above, below = (x, 0.0, False, True), (x, 0.0, True, True)
    assert arms.verdicts([above]) == ["holds"] and arms.verdicts([below]) == ["refuted"]
    assert arms.verdicts([above, above, above]) == ["holds", "inconclusive", "inconclusive"]  # two others: 2 p > 5 %
    assert arms.verdicts([above, above, (x, 0.0, False, False)]) == ["holds", "holds", "not testable here"]
    equal = intervals.mean([[1.0, 0.0], [0.0, 1.0]], bounds=intervals.UNIT)
    assert arms.verdicts([(None, 0.0, False, True)]) == arms.verdicts([(equal, 0.0, False, True)]) == ["inconclusive"]


def test_a_claim_is_decided_over_all_rates():
    """A loss at one of two rates that the other does not show is not left out: both are in the mean."""

    def records(rate, gaps):
        both = [("one", 0.5), ("other", 0.5)]
        return [record(a, s, x + (g if a == "one" else 0), rate=rate) for s, g in enumerate(gaps) for a, x in both]

    every = records(1e-4, [0.01, 0.012, 0.011, 0.009]) + records(3e-4, [-0.05, -0.06, -0.055, -0.045])
    claims = (arms.Claim("", "one", "other", "pass@1"),)
    study_ = dataclasses.replace(study(FOLDERS[0]), claims=claims)
    assert arms.decide(study_, [r for r in every if r["rate"] == 1e-4]) == ["holds"]
    assert arms.decide(study_, every) == ["refuted"]


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_every_arm_is_a_config_and_every_claim_compares_arms(folder):
    s = study(folder)
    fields = [{"seed": 0, arms.RATE: s.rates[0], **arm} for arm in s.arms.values()]
    assert len({run.name for run in sweep.expand(fields, s.config())}) == len(s.arms)
    assert len(s.seeds) >= 5 and {c.first for c in s.claims} | {c.second for c in s.claims} <= {*s.arms, "base"}


@pytest.mark.default_tier(4)
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_page_has_the_tables_of_its_results(folder):
    records = json.loads((folder / "results.json").read_text())
    s = study(folder)
    assert {(r["arm"], r["seed"], r["rate"]) for r in records} == {
        (arm, seed, rate) for arm in s.arms for seed in s.seeds for rate in s.rates
    }
    assert arms.tables(s, records) in (folder / "README.md").read_text()
    assert f"[{name_of(folder)}]({name_of(folder)}/README.md)" in (ROOT / "experiments" / "README.md").read_text()


@pytest.mark.full
def test_a_short_study_runs_and_the_same_command_runs_nothing_more(tmp_path):
    s = arms.shortened(study(ROOT / "experiments" / "clip_higher"))
    (tmp_path / "README.md").write_text(f"before\n{arms.BEGIN}\n{arms.END}\nafter\n")
    records = arms.run(s, tmp_path / "work")
    text = arms.write(s, records, tmp_path)
    assert (tmp_path / "README.md").read_text() == f"before\n{arms.BEGIN}\n{text}\n{arms.END}\nafter\n"
    assert all(len(r["curves"]["entropy"]) == 2 and r["result"].keys() == r["base"].keys() for r in records)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert arms.run(s, tmp_path / "work") == records
