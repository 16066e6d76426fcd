"""Studies of arms: what intervals decide, configs of all arms, pages made of stored results, and one short study."""

import dataclasses
import importlib
import json
import pathlib

import pytest

from experiments import arms
from rljax.run import intervals, sweep

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in (ROOT / "experiments").glob("*/study.py") if "arms.Study(" in path.read_text())


def study(folder):
    return importlib.import_module(f"experiments.{folder.name}.study").STUDY


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
    got = arms.difference(RECORDS, arms.Claim("", "other", "one", "pass@1"), 1e-3)
    assert got == intervals.difference({0: 0.4, 1: 0.5}, {0: 0.5, 1: 0.7}) and got.over == "paired seed"
    failed = [r | ({"failure": "not finite"} if (r["arm"], r["seed"]) == ("one", 1) else {}) for r in RECORDS]
    assert arms.difference(failed, arms.Claim("", "other", "one", "pass@1"), 1e-3) is None


@pytest.mark.parametrize(
    ("low", "high", "above", "below", "margin"),
    [
        (0.01, 0.03, "holds", "does not hold", "holds"),
        (-0.01, 0.03, "cannot tell", "cannot tell", "holds"),
        (-0.03, -0.01, "does not hold", "holds", "cannot tell"),
        (-0.05, -0.03, "does not hold", "holds", "does not hold"),
    ],
)
def test_an_interval_decides_a_claim(low, high, above, below, margin):
    x, claim = intervals.Estimate((low + high) / 2, low, high, 6), arms.Claim("", "one", "other", "pass@1")
    assert claim.verdict(x) == above
    assert dataclasses.replace(claim, below=True).verdict(x) == below
    assert dataclasses.replace(claim, margin=-0.02).verdict(x) == margin
    assert claim.verdict(None) == "cannot tell"


def test_a_claim_holds_if_it_holds_at_one_rate_and_is_refuted_at_none():
    yes, no, open_ = arms.VERDICTS
    decided = {(yes, open_): yes, (no, open_): no, (yes, no): open_, (open_, open_): open_, (yes, yes): yes}
    assert {pair: arms.decide(pair) for pair in decided} == decided


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_arm_is_a_config_and_every_claim_compares_arms(folder):
    s = study(folder)
    fields = [{"seed": 0, arms.RATE: s.rates[0], **arm} for arm in s.arms.values()]
    assert len({run.name for run in sweep.expand(fields, s.config())}) == len(s.arms)
    assert len(s.seeds) >= 5 and {c.first for c in s.claims} | {c.second for c in s.claims} <= {*s.arms, "base"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_page_has_the_tables_of_its_results(folder):
    records = json.loads((folder / "results.json").read_text())
    s = study(folder)
    assert {(r["arm"], r["seed"], r["rate"]) for r in records} == {
        (arm, seed, rate) for arm in s.arms for seed in s.seeds for rate in s.rates
    }
    assert arms.tables(s, records) in (folder / "README.md").read_text()
    assert f"[{folder.name}]({folder.name}/README.md)" in (ROOT / "experiments" / "README.md").read_text()


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
