"""Pictures that are drawn again: plain Python reads, draws and compares what is written."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import characters
from rljax.environments.problems import drawing
from rljax.environments.verifiers import similarity
from tests.support import on_device

FORMS = {"c": "circle", "s": "square", "t": "triangle", "x": "cross", "d": "diamond"}
NAMES = {name[0]: name for name in drawing.COLOURS}


@functools.cache
def make(**settings):
    task = environments.lookup("redraw")(completion_length=24, **settings)
    return task.bind(tokenizers.train([next(task.corpus())]))


@functools.partial(jax.jit, static_argnums=(0, 2))
def run(task, index, split):
    token, mask = task.demonstrations(index, split, jax.random.key(0))
    return task.prompts(index, split), token, task.verify(index, split, token, mask)


@functools.partial(jax.jit, static_argnums=0)
def verify(task, index, token, mask):
    return task.verify(index, "train", token, mask)


@functools.cache
def mask(form, x, y, radius, pixels):
    return np.asarray(drawing.shape(pixels, [*FORMS].index(form), x, y, radius))


def read(written, task):
    """Return (form, colour, x, y, radius) of each shape, or None."""
    rules = task.rules
    colours, forms = "".join([*NAMES][: rules.colours]), "".join([*FORMS][: rules.forms])
    one = f"[{colours}][{forms}][0-{rules.places - 1}]{{2}}[0-2]"
    if not re.fullmatch(f"{one}(,{one}){{0,2}}", written):
        return None
    shapes, side = [], rules.pixels
    for colour, form, *numbers in written.split(","):
        x, y, size = map(int, numbers)
        x, y = ((2 * place + 1) * side // (2 * rules.places) for place in (x, y))
        shapes.append((form, drawing.COLOURS[NAMES[colour]], x, y, (size + 2) * side // 32))
    return shapes


def painted(shapes, side):
    picture = np.zeros((side, side, 3), np.uint8)
    for form, colour, x, y, radius in shapes:
        picture[mask(form, x, y, radius, side)] = colour
    return picture


def described(shown):
    """Return what is written for the text of the twin."""
    short = {name: letter for letter, name in FORMS.items()}
    parts = (part.split() for part in shown.split(","))
    return ",".join(f"{colour[0]}{short[form]}{''.join(numbers)}" for colour, form, *numbers in parts)


CASES = {"one": {"shapes": 1, "forms": 5}, "two": {}, "three": {"shapes": 3, "colours": 6, "pixels": 40, "places": 8}}


@pytest.mark.full
@pytest.mark.parametrize(("case", "split"), [("one", "heldout"), ("two", "train"), ("three", "heldout")])
def test_twin_picture_and_demonstration_agree(case, split):
    task, twin, index = make(**CASES[case]), make(**CASES[case], twin=True), np.arange(48, dtype=np.int32) * 7
    (prompts, token, verdict), (texts, other, _) = (run(t, index, split) for t in (task, twin))
    np.testing.assert_array_equal(token, other)
    answers = on_device.decode(task, token)
    for i, (text, written) in enumerate(zip(on_device.decode(twin, texts.token), answers, strict=True)):
        assert described(text.removesuffix(":?")) == written
        np.testing.assert_array_equal(prompts.image[i, 0], painted(read(written, task), task.rules.pixels))
    assert np.all(verdict.outcome == types.Outcome.CORRECT) and len({*answers}) > 40
    for value in (verdict.reward, *verdict.parts.values()):
        np.testing.assert_array_equal(value, 1)
    assert all(len({part[2:4] for part in written.split(",")}) == task.rules.shapes for written in answers)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_splits_share_no_list_of_colours_and_forms(case):
    task, kinds = make(**CASES[case]), []
    for split in ("train", "heldout"):
        written = characters.strings(task.write_demonstrations(jnp.arange(1024), split, jax.random.key(0)))
        kinds.append({tuple(part[:2] for part in text.split(",")) for text in written})
    assert not kinds[0] & kinds[1] and min(map(len, kinds)) > 1


def alike(shapes, target, side):
    """Return the parts by NumPy's forms, the matching by brute force."""
    pictures = [painted(each, side) for each in (shapes, target)]
    pairs = []
    for a, b in itertools.product(shapes, target):
        common, (size, other) = 1.0, (2 * radius + 1 + 0.01 * side for *_, radius in (a, b))  # with the edge of 0.005
        for place, place_of_other in zip(a[2:4], b[2:4], strict=True):
            common *= max(min(size, other, (size + other) / 2 - abs(place - place_of_other)), 0.0)
        iou = common / (size**2 + other**2 - common)
        near = 1 - np.abs(np.subtract(a[1], b[1])).mean() / 255
        pairs.append(((a[0] == b[0]) + near + iou) / 3)
    table, size = np.zeros((3, 3)), len(shapes) + len(target)
    table[: len(shapes), : len(target)] = np.reshape(pairs, (len(shapes), len(target)))
    best = max(table[[*order], [0, 1, 2]].sum() for order in itertools.permutations(range(3)))
    return similarity.pixels(*pictures), similarity.ssim(*pictures), 2 * best / size, np.array_equal(*pictures)


@pytest.mark.full
@pytest.mark.parametrize("partial", [True, False])
def test_verdicts_against_plain_python(partial):
    task, rng, index = make(partial=partial), np.random.default_rng(0), np.arange(160, dtype=np.int32)
    answers, texts, expected = on_device.decode(task, run(task, index, "train")[1]), [], []
    for answer in answers:
        one, two = answer.split(",")
        moved = one[:2] + str(rng.integers(6)) + one[3:]
        forms = [f"{two},{one}", moved, f"{one},{two},{moved}", f"{moved},{two}", f"{one},{moved}", answer]
        forms += [
            "",
            f"{one},",
            f"{one}{two}",
            one[:4],
            f"{one}4",
            f"z{one[1:]}",
            f"{answer},{one},{two}",
            one[:2] + "999",
        ]
        texts.append(forms[min(rng.integers(20), 13)])
        shapes, target = read(texts[-1], task), read(answer, task)
        expected.append((1, *alike(shapes, target, 32)) if shapes else (0,) * 5)
    verdict = verify(task, index, *on_device.completions(task, texts))
    form, pixels, ssim, structure, correct = np.array(expected, float).T
    assert all(0 < x.mean() < 1 for x in (form, correct))
    for name, column in {"format": form, "pixels": pixels, "ssim": ssim, "structure": structure}.items():
        np.testing.assert_allclose(verdict.parts[name], column, atol=1e-5, err_msg=name)
    mean = sum(np.asarray(verdict.parts[name]) for name in task.rules.parts) / 3
    np.testing.assert_allclose(verdict.reward, mean if partial else correct, rtol=1e-6)
    outcome = np.where(correct > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
    np.testing.assert_array_equal(verdict.outcome, np.where(form > 0, outcome, types.Outcome.UNPARSEABLE))


@pytest.mark.full
def test_what_is_farther_away_is_less_alike():
    task, index = make(shapes=1, places=8, pixels=32), np.zeros(4, np.int32)
    (answer,) = on_device.decode(task, run(task, index[:1], "train")[1])
    x, step = int(answer[2]), 1 if int(answer[2]) < 4 else -1
    texts = [f"{answer[:2]}{x + i * step}{answer[3:]}" for i in range(4)]
    verdict = verify(task, index, *on_device.completions(task, texts))
    for name in ("pixels", "ssim", "structure"):
        values = np.asarray(verdict.parts[name])
        assert np.all(values[1:] < 1) and values[0] == 1, name
        assert name == "ssim" or np.all(np.diff(values) <= 1e-6), name  # SSIM forgives more at the border


def test_pixels_must_suffice():
    with pytest.raises(ValueError, match="pixels: 16 is below 4 times places=6"):
        environments.lookup("redraw")(pixels=16)
