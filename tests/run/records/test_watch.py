"""The watcher over the metrics, and the glossary of their names."""

import pathlib
import re
import typing

import jax
import pytest

from rljax.run.records import glossary, watch
from rljax.training import config
from rljax.training.learning import diagnostics
from tests.support import tiny

HEALTHY = {
    "valid_rows": 64.0, "reward_std": 0.5, "flat_groups": 0.4, "advantage_abs": 0.7, "clipped": 0.1, "truncated": 0.1,
    "entropy": 1.2, "kl": 0.02, "gradient_norm": 0.3, "outcome/unparseable": 0.1, "outcome/timed_out": 0.0,
    "outcome/crashed": 0.0, "fired": 0.5,
}  # fmt: skip
SICK = {
    "no valid rows": {"valid_rows": 0.0, "reward_std": 0.0, "flat_groups": 0.0, "advantage_abs": 0.0},
    "equal rewards": {"reward_std": 0.0, "flat_groups": 1.0, "advantage_abs": 0.0},
    "no informative group": {"flat_groups": 1.0, "advantage_abs": 0.0},
    "everything clipped": {"clipped": 0.95},
    "all rows truncated": {"truncated": 1.0},
    "entropy collapsed": {"entropy": 1e-4},
    "divergence from the reference": {"kl": 40.0},
    "unparseable": {"outcome/unparseable": 0.97},
    "failing verifier": {"outcome/timed_out": 0.4, "outcome/crashed": 0.3},
    "idle source": {"fired": 0.0},
    "no gradient": {"gradient_norm": 0.0},
}  # fmt: skip


def test_every_symptom_is_tried():
    assert {s.name for s in watch.SYMPTOMS} == set(SICK)


def messages(watcher, values, first, last, phase="main"):
    return [text for step in range(first, last + 1) for text in watcher.step(step, phase, values)]


@pytest.mark.parametrize("symptom", watch.SYMPTOMS, ids=lambda s: s.name)
def test_a_symptom_is_reported_once_for_each_phase_after_its_steps_in_a_row(symptom):
    watcher, sick, n = watch.Watcher(), HEALTHY | SICK[symptom.name], symptom.steps
    assert messages(watcher, sick, 1, n - 1) == []
    assert messages(watcher, HEALTHY, n, n) == []  # not in a row
    assert messages(watcher, sick, n + 1, 2 * n - 1) == []
    (text,) = messages(watcher, sick, 2 * n, 5 * n)
    assert text.startswith(f"step {2 * n} (phase 'main'): {symptom.name} for {n} steps: ") and text.endswith(".")
    assert messages(watcher, HEALTHY, 5 * n, 5 * n) == messages(watcher, sick, 5 * n, 9 * n) == []
    assert len(messages(watcher, sick, 9 * n, 12 * n, "next")) == 1


def test_a_healthy_run_and_a_phase_without_a_metric_have_no_symptom():
    watcher = watch.Watcher()
    assert messages(watcher, HEALTHY, 1, 50) == messages(watcher, {"loss": 0.0}, 51, 99, "warm") == []
    assert messages(watcher, dict.fromkeys(HEALTHY, float("nan")), 1, 50, "nan") == []


def test_every_activity_that_is_timed_is_in_the_glossary():
    source = "".join(path.read_text() for path in pathlib.Path(watch.__file__).parents[1].rglob("*.py"))
    names = re.findall(r'spent\("(\w+)"\)', source)
    assert len(names) > 5 and glossary.missing([*names, "verify"], glossary.TIMINGS) == []


@pytest.mark.full
def test_every_metric_of_an_update_is_in_the_glossary():
    program = tiny.program(
        "ppo(kl=0.1)",
        seam__source="partial(4)",
        model__experts=2,
        model__experts_per_token=1,
        model__expert_hidden=32,
        log__diagnostics=typing.get_args(config.Diagnostic),
    )
    step = program.steps[0]
    metrics = jax.eval_shape(step.fused, step.shape, program.key)[1]
    names = {*metrics} - {"rows", "skipped_in_row", "failed_row", "failed_problem"}
    assert glossary.missing(names) == []
    assert {"value/loss", "experts/loss", "carried", "kl", "age"} <= names
    asked = {"kl_exact", "entropy_late", "moved_mean", "noise_scale", "gradient_cosine", "effective_samples"}
    assert asked | {"clipped_positive"} <= names and not {*diagnostics.MOMENTS} & names


def test_entries_are_complete_and_unique():
    for entries in (glossary.METRICS, glossary.TIMINGS, glossary.EVALUATIONS):
        assert len(entries) > 1 and all(all(entry) for entry in entries)
        assert len({entry.name for entry in entries}) == len(entries)
    assert glossary.lookup("value/loss").name == "loss" and glossary.lookup("loss/kl").name == "loss/*"
    assert glossary.lookup("mine") is None and glossary.lookup("own/mine").name == "own/*"
    assert glossary.missing(["loss", "mine", "value/mine"]) == ["mine", "value/mine"]


def test_symptoms_read_metrics_that_exist():
    asked = set()

    def ask(name):
        asked.add(name)
        return 0.0

    for symptom in watch.SYMPTOMS:
        for value in (0.0, 1e9):
            symptom.holds(lambda name, value=value: ask(name) or value)
    assert asked <= set(HEALTHY) and glossary.missing(asked) == []
