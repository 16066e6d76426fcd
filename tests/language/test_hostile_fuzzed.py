"""Strings and runs that try to execute code, and fuzzed strings: fuzzed strings; numbers."""

import time

import pytest

from rljax import types
from rljax.config import files, resolve, schema
from rljax.language import messages, settings
from tests.language import fuzz
from tests.language.hostile_cases import commands
from tests.support import tiny

# --- fuzzed strings -------------------------------------------------------------------


BASE = tiny.config()


def refusals(cases):
    """Resolve a config with each string; return how many were refused. Each refusal is a ValueError of one line."""
    count = 0
    for field, text in cases:
        config = BASE.copy_and_resolve_references()
        try:
            files.override(config, field, text)
            resolve.phases(config)
        except ValueError as error:
            count += 1
            assert "\n" not in str(error) and len(str(error)) < 6000, (field, text)
    return count


@pytest.mark.full
def test_fuzzed_strings_are_refused_in_one_line():
    assert refusals(fuzz.strings(seed=0, count=150)) > 100


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_fuzzed_strings_are_refused_in_one_line_each_in_time(seed):
    for case in fuzz.strings(seed=seed + 1, count=250):
        start = time.process_time()
        refusals([case])
        assert time.process_time() - start < 2, case


@pytest.mark.full
def test_mistakes_on_the_command_line_end_with_one_clear_line(tmp_path):
    cases = (
        (("--config", "quickstrat"), "quickstart"),
        (("--config", "quickstart", "--config.phase.main.seed=1"), "a phase cannot set seed, which"),
        (("--config", "quickstart:quik"), "the only variant is 'quick'"),
        (("--config", "quickstart", "--config.batch.promts=3"), "batch.promts: unknown field. Did you mean 'prompts'"),
        (("--config", "quickstart", "--config.algorithm=grppo()"), "Did you mean 'grpo'"),
        (("--config", "quickstart", "--set", "algorithm.kll=0.1"), "no argument 'kll'"),
    )
    done = commands(tmp_path, *(list(arguments) for arguments, _ in cases))
    for (_, words), (code, text) in zip(cases, done, strict=True):
        assert code == 2 and words in text and text.startswith("error: ") and text.count("\n") == 1, text


@pytest.mark.full
def test_fuzzed_command_lines_end_in_one_line_and_exit_code_2(tmp_path):
    cases = [(f, t) for f, t in fuzz.strings(seed=9, count=80) if not {*"\0\ud800\udfff"} & {*t} and len(t) < 50_000]
    cases = [case for case in cases if refusals([case])][:20]
    lines = [
        ["--config", "quickstart", *([f"--config.{f}={t}"] if n % 2 else ["--set", f"{f}={t}"])]
        for n, (f, t) in enumerate(cases)
    ]
    lines.append(["\x1b[2J" + "x" * 50_000 + "\nsecond line"])
    done = commands(tmp_path, *lines)
    assert len(done) == len(lines) == 21
    for line, (code, text) in zip(lines, done, strict=True):
        assert code == 2 and text.startswith("error: ") and len(text) < 6000, (line, text)
        assert text.count("\n") == 1 and text[:-1].isprintable(), (line, text)


TEXTS = {
    "long": "x" * 10**7,
    "escapes": "\x1b[2J\x07\x9b",
    "lines": "a\nb\r",
    "direction": "\u202e",
    "surrogate": "\ud800",
    "digits": 10**10_000,
    "wide": ((),) * 10**6,
}


@pytest.mark.parametrize("value", TEXTS.values(), ids=list(TEXTS))
def test_user_text_in_an_error_is_short_and_printable(value):
    config = tiny.config()
    for field in ("algorithm", "task", "tokenizer.kind", "seed", "phases"):
        with pytest.raises(ValueError) as caught:
            files.override(config, field, value)
            resolve.phases(config)
        printed = messages.printable(caught.value)
        assert printed.isprintable() and len(printed) < 6000


# --- numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", [f for f in settings.fields(schema.Config) if isinstance(f.default, int | float) and f.type is not bool],
    ids=lambda f: ".".join(f.path),
)  # fmt: skip
def test_every_number_of_a_config_has_an_upper_bound(field):
    for value in (float("nan"), float("inf"), float("-inf"), 1e39, 10**39):
        tree = {}
        settings.put(tree, field.path, value)
        with pytest.raises(ValueError, match=rf"{field.path[-1]}=.*must be a"):
            settings.verify(schema.Config, tree)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(
            ("phase.main.optimizer", f"adamw(learning_rate={x})")
            for x in ("nan", "inf", "-inf", "1e999", "1e39", "-nan")
        ),
        ("phase.main.optimizer", "muon(nan)"),
        ("phase.main.optimizer", "sgd(linear_schedule(1.0, inf, 5))"),
        ("phase.main.optimizer", "adam(1e-3) | clip(nan)"),
        ("phase.main.optimizer", "chain(adam(1e-3), scale(inf))"),
        ("seam.penalty", "kl('k3', linear(0.1, nan, 5))"),
        ("seam.reward", "affine(inf)"),
        ("seam.reward", "decoupled((('a', nan),))"),
        ("seam.surrogate", "clip(inf, 0.2)"),
        ("seam.surrogate", "clip(0.2, nan)"),
        ("algorithm", "grpo(kl=1e999)"),
        ("algorithm", "grpo(ddof=10000000000)"),
        ("algorithm", "dr_grpo(length=10000000000)"),
        ("task", "arithmetic(slip=nan)"),
        ("task", "arithmetic(digits=100000000)"),
        ("task", "countdown(prompt_length=100000000)"),
    ],
)
def test_numbers_of_calls_are_finite_and_bounded(field, text):
    config = tiny.config()
    files.override(config, field, text)
    with pytest.raises(ValueError, match=rf"config\.{field.split('.')[0]}"):
        resolve.phases(config)


def test_infinity_where_the_annotation_allows_it():
    for field, text in (
        ("seam.reward", "affine(limit=inf)"),
        ("seam.ratio", "product(low=-inf, high=inf)"),
        ("seam.surrogate", "clip(0.2, inf)"),
        ("seam.weight", "truncated_importance(inf)"),
    ):
        config = tiny.config()
        files.override(config, field, text)
        resolve.phases(config)
    assert str(types.Range(0, float("inf"))) == "[0, inf]" and float("inf") in types.Range(0, float("inf"))
    assert str(types.Range(0)) == "[0, inf)" and float("inf") not in types.Range(0)
    assert float("nan") not in types.Range(float("-inf"), float("inf"))
