"""The search for faster fields: candidates, the rule of decision on given times, and one real run."""

import contextlib
import itertools
import re

import pytest

from rljax import bench
from rljax.bench import choices, tune, workers
from rljax.config import files, schema
from rljax.language import parse
from tests.support import tiny


def _timed(speed, refused=(), rounds=8):
    """Return a measure from given times, and the settings that it was asked for.

    Args:
      speed: field -> value -> its factor of the time; a list has one factor for each round.
      refused: (field, value) that cannot run.
      rounds: calls of each setting.
    """
    asked = []

    def seconds(edits, number):
        product = 1.0
        for field, x in edits.items():
            factor = speed.get(field, {}).get(x, 1.0)
            product *= factor[number] if isinstance(factor, list) else factor
        return product * (1 + number % 3)  # the machine's speed changes between rounds

    def measure(settings, parts):
        asked.append((settings, parts))
        results = []
        for edits in settings:
            reasons = [f"no {field}" for field, x in edits.items() if (field, x) in refused]
            times = [seconds(edits, number) for number in range(rounds)]
            one = {"seconds": times, "cpu_s": times, "compile_s": 1.0, "bytes": 2**30}
            results.append(reasons[0] if reasons else one)
        return results

    return measure, asked


def _search(values, speed, refused=()):
    measure, asked = _timed(speed, refused)
    return tune.search(schema.default(), values, choices.BOTH, measure), asked


def test_ratios_are_those_of_the_rounds():
    # 8 and 2 s in one round, 1 and 2 s in the other: ratios 1/4 and 2
    assert bench.compared([8.0, 1.0], [2.0, 2.0]) == {
        "ratio": 1.125,
        "ratio_quartiles": [2.0, 0.25][::-1],
        "rounds_faster": 0.5,
    }


@pytest.mark.parametrize(
    ("factor", "taken"),
    [
        (0.9, True),
        (0.98, False),  # less than the noise
        (1.1, False),
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0], True),  # 3 rounds in 4
        ([0.5, 0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0], False),
    ],
)
def test_a_value_is_taken_if_it_is_faster_by_more_than_the_noise(factor, taken):
    result, _ = _search({"sampler.compact": [0, 3]}, {"sampler.compact": {3: factor}})
    assert result["edits"] == ({"sampler.compact": 3} if taken else {})
    assert [(t["value"], t["taken"]) for t in result["trials"]] == [(0, False), (3, taken)]


def test_the_search_takes_the_fastest_value_of_each_field_and_goes_on_from_it():
    values = {"sampler.draw": ["inverse", "gumbel"], "learner.microbatches": [1, 2, 4], "learner.lanes": [0, 1]}
    speed = {
        "sampler.draw": {"gumbel": 0.8},
        "learner.microbatches": {2: 0.9, 4: 0.7},
        "learner.lanes": {1: 0.5},
    }
    result, asked = _search(values, speed, refused=[("learner.microbatches", 4)])
    assert result["edits"] == {"sampler.draw": "gumbel", "learner.microbatches": 2, "learner.lanes": 1}
    first, second, third, again = asked
    assert first == ([{}, {"sampler.draw": "gumbel"}], ["rollout"])
    assert second[1] == third[1] == again[1] == ["update"]
    assert third[0][0] == {"sampler.draw": "gumbel", "learner.microbatches": 2}
    # a later field has changed, so that the number of micro-batches is searched again, from there
    assert [edits["learner.microbatches"] for edits in again[0]] == [2, 1, 4]
    assert all(edits["learner.lanes"] == 1 for edits in again[0])
    assert result["skipped"][0] == {"field": "learner.microbatches", "value": 4, "reason": "no learner.microbatches"}


def test_a_field_that_returns_to_its_value_is_no_edit_and_a_config_that_cannot_run_is_an_error():
    numbers = itertools.count()

    def measure(settings, parts):
        slow = next(numbers) == 2  # after another field has changed, one micro-batch is the fastest
        times = [1.0 if edits.get("learner.microbatches", 1) == 1 else (2.0 if slow else 0.5) for edits in settings]
        times = [0.5 * t if "learner.lanes" in e else t for t, e in zip(times, settings, strict=True)]
        return [{"seconds": [t] * 4, "cpu_s": [t] * 4, "compile_s": 0.0, "bytes": 0} for t in times]

    config = schema.default()
    config.learner.microbatches = 1
    result = tune.search(config, {"learner.microbatches": [1, 2], "learner.lanes": [0, 1]}, ["update"], measure)
    assert result["edits"] == {"learner.lanes": 1}
    with pytest.raises(ValueError, match="the config itself does not run: no memory"):
        tune.search(schema.default(), {"learner.lanes": [0, 1]}, ["update"], lambda *_: ["no memory", "no memory"])


def test_values_that_cannot_differ_are_left_out_with_the_reason():
    config = tiny.config()
    values, skipped = tune.candidates(config, 3, 64, [], "cpu", 1)  # completions of 3 tokens, a vocabulary of 64
    assert values["sampler.cache_block"] == [] and values["learner.vocabulary"] == [] and values["cpu_devices"] == []
    assert values["model.attention"] == ["plain", "blocked"]
    assert values["learner.microbatches"] == [0, 1, 2, 4, 8]
    reasons = {(s["field"], s["value"]): s["reason"] for s in skipped}
    assert (
        "the same as 0" in reasons["sampler.cache_block", 128] and "the same as 0" in reasons["learner.vocabulary", 0]
    )
    assert reasons["model.attention", "splash"] == "runs on tpu"
    assert tune.candidates(config, 3, 64, ["cpu_devices"], "cpu", 4)[0] == {"cpu_devices": [1, 4]}
    assert tune.candidates(config, 3, 64, ["model.attention"], "gpu", 4)[0]["model.attention"][2:] == ["cudnn"]
    with pytest.raises(ValueError, match=r"--fields: unknown field model\.dtype; the fields are cpu_devices"):
        tune.candidates(config, 3, 64, ["model.dtype"], "cpu", 4)


def test_fields_change_speed_alone_and_include_those_of_the_choices():
    config = schema.default()
    for field in choices.FIELDS:
        workers.value(config, field)  # it exists
    assert {f for edits in choices.CHOICES.values() for f in edits} <= {*choices.FIELDS}
    rounded = {"model.decode_weights", "model.dtype", "model.param_dtype", "learner.rounding"}
    assert not rounded & {*choices.FIELDS} and {*choices.REDRAWS} <= {*choices.FIELDS}


def test_fields_are_set_where_they_have_an_effect_on_the_last_phase():
    config = tiny.phases()
    assert workers.place(config, "learner.lanes") == "phase.main.learner.lanes"  # the warm start keeps its own
    assert workers.place(config, "cpu_devices") == "cpu_devices"
    assert workers.place(files.last_phase(config), "learner.lanes") == "learner.lanes"
    config.phase.main.learner.lanes = 2
    assert workers.place(files.last_phase(config), "learner.lanes") == "phase.main.learner.lanes"
    assert workers.value(config, "learner.lanes") == 2 and workers.value(config, "learner.epochs") == 1
    edits = {"phase.main.sampler.draw": "gumbel", "phase.main.learner.share_prompt": False, "cpu_devices": 2}
    flags, lines = tune.words(edits)
    assert flags.startswith("--set phase.main.sampler.draw=gumbel --set phase.main.learner.share_prompt=false")
    for flag, (field, value) in zip(flags.split("--set ")[1:], edits.items(), strict=True):
        assert parse.setting(flag.strip()) == (field, value)  # as every command reads it
    exec("\n".join(lines), {"config": config})
    assert [workers.value(config, f) for f in ("sampler.draw", "learner.share_prompt")] == ["gumbel", False]
    assert config.cpu_devices == 2


def test_the_table_has_the_words_and_names_other_draws():
    measure, _ = _timed({"sampler.draw": {"gumbel": 0.5}})
    result = tune.search(schema.default(), {"sampler.draw": ["inverse", "gumbel"]}, choices.BOTH, measure)
    whole = {**result["trials"][1], "base_ms": 2000.0, "base_compile_s": 1.0, "base_gib": 1.0, "faster": True}
    record = {"phase": "main", "lengths": "fixed", "rounds": 8, "cores": 2, "device": "cpu", "load": 1.0}
    record |= {"trials": result["trials"], "skipped": [{"field": "a", "value": 1, "reason": "b"}], "whole": whole}
    text = tune.table({**record, "edits": result["edits"], "redraws": ["sampler.draw"]})
    assert "--set sampler.draw=gumbel\n" in text and 'config.sampler.draw = "gumbel"' in text
    assert "skipped: a = 1: b" in text and "tokens differ, their distribution does not" in text
    assert re.search(r"sampler.draw = gumbel +1000\.0 +0\.500 .*taken", text)
    assert "keep the config" in tune.table({**record, "whole": None})


def test_few_rounds_are_an_error():
    with pytest.raises(ValueError, match="at least 4"):
        tune.tune(workers.Work(tiny.config(), "fixed"), 3)


@pytest.mark.full
def test_another_process_times_a_part_and_reports_what_it_cannot_run():
    work = workers.Work(tiny.config(), "longtail")
    with contextlib.closing(tune.Rounds(work, workers.Remote(work, 2), 4)) as rounds:
        timed, refused, unknown = rounds.measure([{}, {"sampler.compact": 99}, {"sampler.draw": "none"}], ["rollout"])
    assert len(timed["seconds"]) == len(timed["cpu_s"]) == 4 and min(timed["cpu_s"]) > 0
    assert timed["compile_s"] > 0 and timed["bytes"] > 0
    assert "sampler.compact=99" in refused and "sampler.draw='none'" in unknown
