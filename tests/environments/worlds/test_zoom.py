"""The world ``zoom``: what its pictures show is read again from their pixels alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.environments import characters
from rljax.environments.worlds.shipped.zoom import Zoom
from rljax.language import parse
from rljax.run.reports import records
from tests.run.reports.test_images import decoded
from tests.support import tiny
from tests.training.test_step import begun

COUNT = 64
COLOURS = {"red": (230, 40, 40), "green": (40, 190, 70), "blue": (60, 110, 255), "yellow": (250, 220, 50)}
DIGITS = "75557 26227 71747 71717 55711 74717 74757 71122 75757 75717".split()


def episodes(rules, *turns):
    """Play episodes of the expert, or of these two texts; return what is seen, written and answered in each turn."""
    texts = [[ord(c) for c in text.ljust(2, "\0")] for text in turns or ("", "")]
    return jax.device_get(_played(rules, jnp.asarray(texts, jnp.int32), bool(turns)))


@functools.partial(jax.jit, static_argnums=0)
def _played(rules, texts, given):
    def one(index):
        state, out = rules.begin(index, "train", jax.random.key(0)), []
        for k in range(2):
            key = jax.random.fold_in(jax.random.key(1), index * 2 + k)
            text = jnp.where(given, texts[k], rules.expert(state, 0, key))
            seen = {"prompt": rules.prompt(state, 0), "text": text}
            seen |= {} if rules.twin else {"picture": rules.picture(state, 0)}
            state, answer = rules.step(state, 0, text, key)
            out.append(seen | {"answer": vars(answer)})
        return out, state

    return jax.vmap(one)(jnp.arange(COUNT))


def colour_of(pixels):
    """Return the name of the nearest colour of a plate's pixels ``[n, 3]``, None if most are black."""
    value = np.median(pixels.astype(float), axis=0)
    near = {name: np.abs(value - c).sum() for name, c in COLOURS.items()} | {None: value.sum()}
    return min(near, key=near.get)


def digit_of(picture):
    """Return the digit whose 3 x 5 black pixels a plate shows, read from the rectangle that holds them."""
    black = (picture == 0).all(axis=-1)[3:-3, 3:-3]
    (rows, columns) = (np.flatnonzero(black.any(axis=axis)) for axis in (1, 0))
    glyph = black[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return str(DIGITS.index("".join(str(int("".join("01"[int(b)] for b in row), 2)) for row in glyph)))


@pytest.mark.full
def test_pictures_show_where_the_plates_are_and_the_digit_of_the_named_cell():
    rules = Zoom()
    (first, second), _ = episodes(rules)
    prompts = [characters.strings(turn["prompt"]) for turn in (first, second)]
    said = [characters.strings(turn["text"]) for turn in (first, second)]
    for i in range(COUNT):
        colour = prompts[0][i].lstrip(characters.PICTURE)[:-1]
        assert prompts[0][i] == characters.PICTURE * 16 + colour + ">"
        assert prompts[1][i] == characters.PICTURE * 32 + colour + "?"
        whole, cell = second["picture"][i]
        assert (whole == first["picture"][i, 0]).all()
        plates = {}
        for row in range(4):
            for column in range(4):
                pixels = whole[row * 8 + 1 : row * 8 + 7, column * 8 + 1 : column * 8 + 7].reshape(-1, 3)
                plates[f"{'abcd'[column]}{row + 1}"] = colour_of(pixels)
        assert sorted(filter(None, plates.values())) == sorted(COLOURS)
        assert plates[said[0][i]] == colour  # the expert names the cell of the colour
        assert colour_of(cell.reshape(-1, 3)) == colour and digit_of(cell) == said[1][i]
    assert (second["answer"]["reward"] == 1).all() and (second["answer"]["parts"]["grounded"] == 1).all()
    assert (second["answer"]["outcome"] == types.Outcome.CORRECT).all()


def test_only_the_answer_is_paid_wherever_the_first_turn_looked():
    for turns, malformed in ((("a1", "7"), 0), (("e1", "7"), 1), (("", "7x"), 2)):
        (first, second), state = episodes(Zoom(), *turns)
        hit = state["digit"][:, 0] == 7
        reward = hit if malformed < 2 else np.zeros(COUNT)
        assert (first["answer"]["reward"] == 0).all() and (second["answer"]["reward"] == reward).all()
        assert (second["answer"]["parts"]["malformed"] == malformed).all()
        looked = turns[0] == "a1"
        assert (second["answer"]["parts"]["grounded"] == looked * (state["cell"][:, 0] == 0)).all()
        same = (second["picture"][:, 0] == second["picture"][:, 1]).all(axis=(1, 2, 3))
        assert same.all() != looked  # an unreadable turn sees the whole twice


@pytest.mark.full
def test_nothing_is_magnified_where_it_should_not():
    (_, second), _ = episodes(Zoom(magnify=False))
    assert (second["picture"][:, 0] == second["picture"][:, 1]).all()


def test_the_twin_says_what_the_pictures_show():
    (first, second), _ = episodes(Zoom(twin=True))
    for prompt, cell, after, digit in zip(
        *(characters.strings(x) for x in (first["prompt"], first["text"], second["prompt"], second["text"])),
        strict=True,
    ):
        plates, _, colour = prompt[:-1].partition(":")
        assert dict(plate.split() for plate in plates.split(","))[colour] == cell
        assert after == f"{digit}:{colour}?"
    (_, second), state = episodes(Zoom(twin=True), "a1", "7")
    for i, prompt in enumerate(characters.strings(second["prompt"])):
        (plate,) = np.flatnonzero(state["cell"][i] == 0) if (state["cell"][i] == 0).any() else (None,)
        assert prompt[0] == ("-" if plate is None else str(state["digit"][i, plate]))


def test_the_splits_share_no_pair_of_cell_and_digit():
    rules, pairs, others = Zoom(cells=2, plates=2, pixels=16, heldout=0.25), {}, []
    for split in ("train", "heldout"):
        begin = jax.vmap(functools.partial(rules.begin, split=split, key=jax.random.key(0)))
        state = jax.jit(begin)(jnp.arange(2000))
        cells, digits = np.asarray(state["cell"]), np.asarray(state["digit"])
        pairs[split] = set(zip(cells[:, 0].tolist(), digits[:, 0].tolist(), strict=True))
        others.append(set(zip(cells[:, 1].tolist(), digits[:, 1].tolist(), strict=True)))
    assert not pairs["train"] & pairs["heldout"]
    assert (len(pairs["train"]), len(pairs["heldout"])) == (30, 10)  # 4 cells, 10 digits
    assert others == [pairs["train"]] * 2  # what plates that are not asked show tells nothing of the split


@pytest.mark.full
def test_mistakes_of_demonstrations_are_as_frequent_as_asked():
    (_, second), _ = episodes(Zoom(astray=0.5))
    assert 0.2 < second["answer"]["parts"]["grounded"].mean() < 0.8
    assert (second["answer"]["reward"] == 1).all()  # the expert knows the digit wherever it looked


@pytest.mark.full
def test_both_turns_are_trained_and_records_have_what_each_saw():
    fields = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "pixels": 16, "tokens": 4}
    fields = {f"model__vision__{name}": x for name, x in fields.items()}
    program = tiny.program("mgpo()", task="zoom(cells=2, plates=2, pixels=16, tokens=4)", **fields)
    (step,) = program.steps
    _, metrics = step.fused(begun(step, program.key), program.key)
    rows = jax.device_get(metrics["rows"])
    assert metrics["sampler_gap"] < 1e-5
    shown = (rows.context.token == program.tokenizer.encode(characters.PICTURE)[0]).sum(axis=1)
    assert shown.tolist() == [4, 8] * (len(shown) // 2) and (rows.mask.sum(axis=1) > 0).all()
    for i, record in enumerate(records.rollouts(program, step.setup, 1, rows)):
        assert len(record["pictures"]) == 1 + i % 2
        np.testing.assert_array_equal(decoded(record["pictures"][-1]), rows.context.image[i, i % 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("cells=9", "cells"),
        ("plates=5, cells=2", "plates: 5 is above the 4 cells"),
        ("cells=8, pixels=16", "pixels: 16: expected at least 32 with cells=8"),
        ("heldout=1.0", "heldout: 1.0 is not strictly between 0 and 1"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        parse.one(f"zoom({arguments})", parse.Registry("task", environments.TASKS), "task")
