"""Tasks with a picture: plain Python reads the twin and the pixels, and computes the answer from each."""

import collections
import functools
import inspect
import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import characters, traits
from rljax.environments.problems import drawing, drawn, mixed, numbering
from tests.support import on_device

ROWS = 96
CORRECT = types.Outcome.CORRECT


# --- plain Python: the answer from the text of the twin, and what the pixels of a picture show -----------


def counting(shown, question, task):
    return str(shown.split(",").count(question[:-1]))


def colour_of(pixel):
    return {tuple(rgb): name for name, rgb in drawing.COLOURS.items()}[tuple(int(x) for x in pixel)]


def parts(picture, grid):
    """Yield the cells of a grid, row by row."""
    side = len(picture) // grid
    for i, j in itertools.product(range(grid), repeat=2):
        yield picture[i * side : (i + 1) * side, j * side : (j + 1) * side]


def form_of(ink):
    """Return the form of a mask from the widths of its rows, from the top."""
    rows = [int(n) for n in ink[ink.any(1)].sum(1)]
    size, middle = len(rows), len(rows) // 2
    if rows == size * [size]:
        return "square"
    if rows != rows[::-1]:
        return "triangle" if rows == sorted(rows) and rows[-1] == size else ""
    if rows[0] == rows[middle - 1] <= size // 3:
        return "cross"
    return "circle" if rows[0] > 1 else "diamond" if rows == [size - abs(2 * i + 1 - size) for i in range(size)] else ""


def see_counting(picture, task):
    shapes = []
    for cell in parts(picture, task.rules.grid):
        ink = cell.any(2)
        if ink.any():
            (pixel,) = {tuple(p) for p in cell[ink]}
            shapes.append(f"{colour_of(pixel)} {form_of(ink)}")
    return ",".join(shapes)


def charts(shown, question, task):
    heights = {name: int(height) for name, height in map(str.split, shown.split(","))}
    first, _, second = question[:-1].partition("-")
    return str(max(heights.values()) if first == "max" else heights[first] - heights.get(second, 0))


def see_charts(picture, task):
    names, bars = {rgb: name for name, rgb in drawing.COLOURS.items()}, []
    lines = np.flatnonzero(picture[:, -1].any(1))  # the right margin has nothing else
    for colour, columns in itertools.groupby(range(len(picture)), lambda x: names.get(tuple(picture[-1, x].tolist()))):
        if colour:
            place = next(columns)
            top = min(y for y in range(len(picture)) if names.get(tuple(picture[y, place].tolist())) == colour)
            assert top in lines
            bars.append(f"{colour} {np.sum(lines > top)}")
    assert len(lines) == task.rules.highest + 1
    return ",".join(bars)


def labyrinth(shown, question, task):
    ends, *edges = shown.split(",")
    (start, goal), open_to = ends.split(">"), collections.defaultdict(list)
    for edge in edges:
        open_to[edge[:2]].append(edge[2:])
        open_to[edge[2:]].append(edge[:2])
    paths, seen = collections.deque([[start]]), {start}
    while paths[0][-1] != goal:
        path = paths.popleft()
        paths += [[*path, cell] for cell in open_to[path[-1]] if cell not in seen]
        seen.update(open_to[path[-1]])
    path = paths[0]
    if question == "steps?":
        return str(len(path) - 1)
    (x, y), (to_x, to_y) = path[0], path[1]
    return ("r" if to_x > x else "l") if to_y == y else ("d" if to_y > y else "u")


def see_labyrinth(picture, task):
    """Return start and goal, and the open pairs as a set."""
    count, side = task.rules.cells, len(picture) // task.rules.cells
    names, places, edges = {rgb: name for name, rgb in drawing.COLOURS.items()}, {}, set()
    for i, j in itertools.product(range(count), repeat=2):
        cell, here = picture[i * side : (i + 1) * side, j * side : (j + 1) * side], f"{'abcdef'[j]}{i + 1}"
        places |= {names[tuple(rgb)]: here for rgb in cell.reshape(-1, 3).tolist() if tuple(rgb) in names}
        middle = np.flatnonzero(picture[:, j * side + 1].any(1)), np.flatnonzero(picture[i * side + 1].any(1))
        if {i * side + side - 1, i * side + side} <= set(middle[0].tolist()):
            edges.add(frozenset({here, f"{'abcdef'[j]}{i + 2}"}))
        if {j * side + side - 1, j * side + side} <= set(middle[1].tolist()):
            edges.add(frozenset({here, f"{'abcdef'[j + 1]}{i + 1}"}))
    return f"{places['green']}>{places['red']}", edges


def read_labyrinth(shown):
    ends, *edges = shown.split(",")
    return ends, {frozenset({edge[:2], edge[2:]}) for edge in edges}


def box_of(shown, question):
    (box,) = [words[2:] for words in map(str.split, shown.split(",")) if " ".join(words[:2]) + "?" == question]
    return [int(number) for number in box]


def screen(shown, question, task):
    left, top, right, bottom = box_of(shown, question)
    return (
        f"{left},{top},{right},{bottom}" if task.rules.ask == "box" else f"{(left + right) // 2},{(top + bottom) // 2}"
    )


@functools.cache
def glyphs(letters="ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
    pictures = np.asarray(drawing.text(7, jnp.asarray([[ord(c)] for c in letters]), 2, 1))[:, 1:6, 2:5]
    return {picture.tobytes(): c for c, picture in zip(letters, pictures, strict=True)}


def see_screen(picture, task):
    buttons, side = [], len(picture) // task.rules.grid
    for number, cell in enumerate(parts(picture, task.rules.grid)):
        y, x = np.nonzero((cell != np.asarray(drawing.GREY)).any(2))
        if y.size:
            inside = cell[y.min() : y.max() + 1, x.min() : x.max() + 1]
            ink = ~inside.any(2)
            rows, columns = np.nonzero(ink)
            ink = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            letter = glyphs()[ink.tobytes()]
            down, across = (side * place for place in divmod(number, task.rules.grid))
            box = x.min() + across, y.min() + down, x.max() + across, y.max() + down
            buttons.append(" ".join([colour_of(inside[0, 0]), letter, *map(str, box)]))
    return ",".join(buttons)


def scene(shown, question, task):
    objects = [(name, [*map(int, box)]) for name, *box in map(str.split, shown.split(","))]
    edges = []
    for (one, (a, b, c, d)), (other, (e, f, g, h)) in itertools.combinations(objects, 2):
        x, y = e + g - a - c, f + h - b - d
        relation, forward = ("<", x >= 0) if abs(x) >= abs(y) else ("^", y >= 0)
        edges.append(one + relation + other if forward else other + relation + one)
    return f"{shown}/{','.join(edges)}"


def see_scene(picture, task):
    return ",".join(button.split(" ", 1)[1] for button in see_screen(picture, task).split(","))


def texts_of(ink, gaps=0):
    """Return texts of 3 by 5 characters with up to so many gaps between, and their places from the top and left."""
    known, texts = glyphs("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"), []
    ink = np.pad(ink, ((0, 1), (0, 5 + 4 * gaps)))
    for y, x in itertools.product(range(len(ink) - 5), range(ink.shape[1] - 4 - 4 * gaps)):
        text, place = "", x
        while letter := known.get(
            ink[y : y + 5, place : place + 3].tobytes(), " " * (text[max(len(text) - gaps, 0) :].strip() > "")
        ):
            assert not ink[y : y + 5, place + 3].any()
            text, place = text + letter, place + 4
        if text := text.strip():
            texts.append((" ".join(text.split()), y, x))
            ink[y : y + 5, x:place] = False
    return texts


def document(shown, question, task):
    values = {name: int(number) for name, number in map(str.split, shown.split(","))}
    numbers = [values[name] for name in re.findall("[A-Z]+", question)]
    return str(max(numbers) if task.rules.ask == "larger" else sum(numbers))


def see_document(picture, task):
    return ",".join(text for text, _, _ in texts_of(~picture.any(2), 2))


def geometry(shown, question, task):
    numbers = [int(number) for number in re.findall(r"\d+", shown)]
    if question == "angle?":
        return str(180 - sum(numbers))
    if question == "length?":
        return str(numbers[0] * numbers[2] // numbers[1])
    return str(numbers[1] // 2 - numbers[0])


def see_geometry(picture, task):
    names = {name: (picture == rgb).all(2) for name, rgb in drawing.COLOURS.items()}
    texts = [(text.lower(), y, x) for text, y, x in texts_of(names["yellow"])]
    y, x = np.nonzero(names["white"])
    if task.rules.ask == "length":
        assert min(np.ptp(y), np.ptp(x)) == 0
        return f"{texts[0][0]}={names['green'].sum()},{y.size}=x"
    if task.rules.ask == "side":
        assert 2 * (np.ptp(x) + np.ptp(y)) == names["white"].sum()  # the edges of a rectangle
        above, beside, below = (text for text, _, _ in texts)
        sides = [
            side if side.isdigit() else int(below) // 2 - int(other)
            for side, other in ((above, beside), (beside, above))
        ]
        assert [np.ptp(x) + 1, np.ptp(y) + 1] == [*map(int, sides)]
        return ",".join((above, beside, below))
    base, side = (y.max(), 1) if np.sum(y == y.max()) > np.sum(y == y.min()) else (y.min(), -1)
    apex = y.min() if side > 0 else y.max()
    corners = [x[y == base].min(), x[y == base].max(), x[y == apex].mean()]
    height, (left, right, middle) = abs(int(base) - int(apex)), corners
    drawn_angles = np.degrees(np.arctan2([height, height], [middle - left, right - middle]))
    ends = sorted((text for text in texts if (text[1] - apex) * side > height), key=lambda text: text[2])
    (between,) = set(texts) - set(ends)
    labels = [ends[0][0], ends[1][0], between[0]]
    for label, angle in zip(labels, [*drawn_angles, 180 - drawn_angles.sum()], strict=True):
        assert label == "x" or abs(int(label) - angle) < 6
    return ",".join(labels)


def film(shown, question, task):
    cells, letters = shown.split(","), ""
    for here, there in itertools.pairwise(cells):
        across, down = ((ord(b) - ord(a)) % task.rules.grid for a, b in zip(here, there, strict=True))
        letters += {(0, task.rules.grid - 1): "N", (1, 0): "E", (0, 1): "S", (task.rules.grid - 1, 0): "W"}[
            across, down
        ]
    return letters if question == "moves?" else str(sum(a != b for a, b in itertools.pairwise(letters)))


def see_film(pictures, task):
    """Return where the shape is in each frame, which has the same form and colour in all."""
    cells, seen = [], set()
    for picture in pictures:
        ((number, cell),) = [(n, cell) for n, cell in enumerate(parts(picture, task.rules.grid)) if cell.any()]
        cells.append(f"{'abcdef'[number % task.rules.grid]}{number // task.rules.grid + 1}")
        seen.add(cell.tobytes())
    assert len(seen) == 1
    return ",".join(cells)


CASES = {
    "counting": ("counting", {"distractors": 3, "colours": 5, "shapes": 5}),
    "charts of one bar": ("charts", {"ask": "bar", "highest": 12, "bars": 5}),
    "charts of a difference": ("charts", {"ask": "difference"}),
    "charts of the greatest": ("charts", {"ask": "max", "bars": 2, "pixels": 48}),
    "screen with clicks": ("screen", {"buttons": 6, "letters": 26}),
    "screen with boxes": ("screen", {"buttons": 3, "ask": "box", "grid": 2, "pixels": 40, "colours": 6}),
    "labyrinth of six steps": ("labyrinth", {"length": 6}),
    "labyrinth of a first step": ("labyrinth", {"length": 3, "ask": "first", "cells": 5, "pixels": 40}),
    "scene of three": ("scene", {"objects": 3, "letters": 10}),
    "geometry of angles": ("geometry", {"ask": "angle", "step": 10, "pixels": 64}),
    "geometry of lengths": ("geometry", {"ask": "length"}),
    "geometry of sides": ("geometry", {"ask": "side", "highest": 24}),
    "film of moves": ("film", {"frames": 5}),
    "film of turns": ("film", {"ask": "turns", "frames": 4, "grid": 3}),
    "document with a value": ("document", {"lines": 4}),
    "document with a sum": ("document", {"lines": 2, "ask": "sum", "pixels": 40, "highest": 30}),
    "document with the larger": ("document", {"lines": 5, "ask": "larger", "names": 12, "pixels": 48}),
}


# --- what all tasks share ----------------------------------------------------------------------------


@functools.cache
def make(name, **settings):
    task = environments.lookup(name)(**settings)
    return task.bind(tokenizers.train([next(task.corpus())]))


@functools.partial(jax.jit, static_argnums=(0, 2))
def run(task, index, split):
    token, mask = task.demonstrations(index, split, jax.random.key(0))
    return task.prompts(index, split), token, task.verify(index, split, token, mask)


def decode(task, token):
    return on_device.decode(getattr(task, "tasks", (task,))[0], token)


@pytest.mark.default_tier("counting-train")
@pytest.mark.parametrize(("case", "split"), [*zip(CASES, itertools.cycle(["train", "heldout"]), strict=False)])
def test_twin_picture_and_demonstration_agree(case, split):
    name, settings = CASES[case]
    task, twin = make(name, **settings), make(name, **settings, twin=True)
    index = np.arange(ROWS, dtype=np.int32) * 7
    (prompts, token, verdict), (texts, other, _) = (run(t, index, split) for t in (task, twin))
    size = task.pictures
    assert texts.image is None and twin.pictures is None
    assert prompts.image.shape == (ROWS, size.count, size.height, size.width, 3) and prompts.image.dtype == np.uint8
    np.testing.assert_array_equal(token, other)  # one tokenizer, and one answer
    oracle, see, read = globals()[name], globals()[f"see_{name}"], globals().get(f"read_{name}", str)
    answers = decode(task, token)
    for i, (text, written) in enumerate(zip(decode(twin, texts.token), answers, strict=True)):
        shown, question = text.split(":")
        assert oracle(shown, question, task) == written, text
        seen = np.asarray(prompts.image[i] if name == "film" else prompts.image[i, 0])
        assert see(seen, task) == read(shown), text
        prompt = decode(task, prompts.token[i : i + 1])[0]
        assert prompt == characters.PICTURE * size.tokens * size.count + question
        assert int(prompts.mask[i].sum()) == len(prompt) <= task.prompt_length
    assert len(set(answers)) > (2 if case == "film of turns" else 3) or (set(answers) == {"6"} and name == "labyrinth")
    assert np.all(verdict.outcome == CORRECT) and np.all(verdict.reward == 1)


@pytest.mark.default_tier(3)
@pytest.mark.parametrize("case", CASES)
def test_splits_share_no_combination(case):
    name, settings = CASES[case]
    task = environments.lookup(name)(**settings, heldout=0.2)
    leading, sets = task.rules.leading, []
    for split in ("train", "heldout"):
        value = np.asarray(task.values(jnp.arange(4096, dtype=jnp.int32), split))
        assert np.all((value >= 0) & (value < np.asarray(task.rules.radices)))
        sets.append({tuple(row[:leading].tolist()) for row in value})
    space = int(np.prod(task.rules.radices[:leading]))
    assert not sets[0] & sets[1]
    if space < 500:  # then a sample has them all
        assert (len(sets[0]), len(sets[1])) == (space - round(0.2 * space), round(0.2 * space))


@pytest.mark.full
def test_splits_share_no_maze():
    """All mazes of 4 by 4 cells with their mirror images: 512 combinations, 4 images, none in both splits."""
    task, sets = environments.lookup("labyrinth")(length=1), []
    for split, count in (("train", 461), ("heldout", 51)):
        values = jax.jit(task.values, static_argnums=1)
        value = np.asarray(values(jnp.arange(task.size(split), dtype=jnp.int32), split))[:, :-1]
        value = np.pad(np.unique(value, axis=0), ((0, 0), (0, 1)))
        assert len(value) == count * 4
        texts = characters.strings(jax.jit(task.rules.describe)(jnp.asarray(value)))
        sets.append({frozenset(read_labyrinth(text)[1]) for text in texts})
        assert all(len(edges) == 15 for edges in sets[-1])
    assert not sets[0] & sets[1]
    # all corridors in one direction: such a maze is one of its mirror images
    assert len(sets[0] | sets[1]) == 4 * 512 - 2 * 2


@pytest.mark.parametrize("leading", [None, 1, 2])
def test_problems_are_enumerated_by_combination(leading):
    radices, values, counts = [4, 3, 5, 2], {}, {}
    for split in ("train", "heldout"):
        index = jnp.arange(numbering.size(radices, 0.25, split, leading), dtype=jnp.int32)
        values[split] = [
            tuple(row) for row in np.asarray(numbering.values(radices, 0.25, index, split, leading)).tolist()
        ]
        counts[split] = collections.Counter(row[:leading] for row in values[split])
    assert sorted(values["train"] + values["heldout"]) == sorted(itertools.product(*map(range, radices)))
    assert not set(counts["train"]) & set(counts["heldout"])
    assert set(counts["train"].values()) == set(counts["heldout"].values()) == {int(np.prod(radices[leading or 4 :]))}
    assert len(counts["heldout"]) == round(0.25 * np.prod(radices[:leading]))


def test_a_space_beyond_the_largest_is_sampled():
    radices = [3, 4] + [64] * 20
    for split, count in (("train", 9), ("heldout", 3)):
        size = numbering.size(radices, 0.25, split, 2)
        assert size == count * 64**4 <= 2**28  # 2**28 // 12 leaves room for four
        value = np.asarray(numbering.values(radices, 0.25, jnp.arange(2000, dtype=jnp.int32), split, 2))
        assert len({tuple(row) for row in value[:, 6:].tolist()}) == 2000  # the rest is drawn, anew for each problem
        assert np.all(np.abs(value[:, 2:].mean(0) - 31.5) < 4 * np.sqrt((64**2 - 1) / 12 / 2000))


@pytest.mark.full
@pytest.mark.parametrize("case", ["counting", "charts of a difference", "labyrinth of six steps", "screen with clicks"])
def test_traced_equals_not_traced(case):
    (name, settings), index = CASES[case], jnp.arange(3, dtype=jnp.int32)
    task = make(name, **settings)
    with jax.disable_jit():
        plain = task.prompts(index, "train")
    jax.tree.map(np.testing.assert_array_equal, plain, jax.jit(lambda i: task.prompts(i, "train"))(index))


# --- primitives ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_primitives_against_pixels_by_hand():
    def picture(mask):
        return ["".join(".#"[int(x)] for x in row) for row in np.asarray(mask)]

    assert picture(drawing.rectangle(4, 1, 0, 2, 3)) == [".##."] * 4
    assert picture(drawing.line(4, 0, 0, 3, 3)) == ["#...", ".#..", "..#.", "...#"]
    assert picture(drawing.line(3, 2, 1, 0, 1)) == ["...", "###", "..."]
    text = drawing.text(7, jnp.asarray(characters.codes("7L")), 0, 1)
    assert picture(text) == [".......", "###.#..", "..#.#..", "..#.#..", ".#..#..", ".#..###", "......."]
    large = drawing.text(16, jnp.asarray(characters.codes("7L")), 1, 2, 2)
    np.testing.assert_array_equal(large[2:14, 1:15], np.asarray(text).repeat(2, 0).repeat(2, 1)[2:14, :])
    kinds = drawing.shape(5, np.arange(5), 2, 2, 2)
    assert [form_of(np.asarray(mask)) for mask in kinds] == list(drawing.SHAPES)
    glyphs = np.asarray(drawing.text(5, jnp.asarray([[ord(c)] for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"]), 0, 0))
    assert len({glyph.tobytes() for glyph in glyphs}) == 36


# --- clicks and boxes ------------------------------------------------------------------------------------


def judged(written, box, ask, threshold):
    """Return whether an answer has the form, is correct, inside and exact, and its IoU, by sets of pixels."""
    if not re.fullmatch(",".join([r"\d{1,3}"] * (4 if ask == "box" else 2)), written):
        return False, False, False, False, 0.0, 0.0
    numbers = [int(number) for number in written.split(",")]

    def pixels(left, top, right, bottom):
        return {*itertools.product(range(left, right + 1), range(top, bottom + 1))}

    answer, button = pixels(*numbers[:2], *numbers[-2:]), pixels(*box)
    middle = tuple((a + b) // 2 for a, b in zip(numbers[:2], numbers[-2:], strict=True))
    if ask == "click":
        centre = ((box[0] + box[2]) // 2, (box[1] + box[3]) // 2)
        return True, middle in button, middle in button, middle == centre, 0.0, 0.0
    iou = len(answer & button) / len(answer | button)
    closeness = [1 - abs(a - b) / 32 for a, b in zip(numbers, box, strict=True)]
    near = 4 / sum(1 / c for c in closeness) if min(closeness) > 0 else 0.0
    return True, iou >= threshold, middle in button, numbers == box, iou, near


@pytest.mark.full
@pytest.mark.parametrize(("ask", "partial"), [("click", False), ("box", False), ("box", True)])
def test_clicks_and_boxes_against_sets_of_pixels(ask, partial):
    settings = {"ask": ask, "partial": partial, "threshold": 0.4, "completion_length": 20}
    task, twin, rng = make("screen", **settings), make("screen", **settings, twin=True), np.random.default_rng(0)
    index, texts, expected, boxes = np.arange(600, dtype=np.int32), [], [], []
    for text in decode(twin, jax.jit(lambda i: twin.prompts(i, "train").token)(index)):
        box = box_of(*text.split(":"))
        near = np.maximum(
            np.asarray(box if ask == "box" else [*box][:2]) + rng.integers(-3, 5, 4 if ask == "box" else 2), 0
        )
        written = ",".join(map(str, near))
        forms = [
            written,
            screen(*text.split(":"), task),
            f"{written},1",
            written[:-1] + ",",
            f"0{written}",
            f"1000{written}",
        ]
        texts.append(forms[min(rng.integers(30), 5)] if rng.random() < 0.5 else written)
        expected.append(judged(texts[-1], box, ask, 0.4))
        boxes.append(box)
    verdict = jax.jit(lambda *rows: task.verify(rows[0], "train", *rows[1:]))(
        index, *on_device.completions(task, texts)
    )
    assert set(verdict.parts) == set(task.parts) == {"format", "inside", "exact", "iou", "box", "rate"}
    form, correct, inside, exact, iou, near = np.asarray(expected).T
    assert all(0 < x.mean() < 1 for x in (form, correct, inside, exact))
    for name, column in {"format": form, "inside": inside, "exact": exact, "iou": iou, "box": near}.items():
        np.testing.assert_allclose(verdict.parts[name], column, rtol=1e-5, atol=1e-4, err_msg=name)
    area = np.array([(right - left + 1) * (bottom - top + 1) for left, top, right, bottom in boxes])
    np.testing.assert_allclose(verdict.parts["rate"] * area, (verdict.parts["rate"] * area)[0], rtol=1e-5)
    assert abs(verdict.parts["rate"].mean() - 1) < 0.1  # 600 of all sizes
    outcome = np.where(form > 0, np.where(correct > 0, CORRECT, types.Outcome.WRONG), types.Outcome.UNPARSEABLE)
    np.testing.assert_array_equal(verdict.outcome, outcome)
    np.testing.assert_allclose(verdict.reward, iou if partial else correct, rtol=1e-6)


# --- priors --------------------------------------------------------------------------------------------


def test_prior_and_the_best_blind_policy():
    task = environments.lookup("sorting")(numbers=2)
    share = drawn.prior(task, "heldout")
    prompts = [task.text(i, "heldout") for i in range(task.size("heldout"))]
    answers = collections.Counter(" ".join(sorted(prompt[:-1].split(" "))) for prompt in prompts)
    assert share == pytest.approx({answer: count / len(prompts) for answer, count in answers.items()})
    assert drawn.blind(task, "heldout") == pytest.approx(max(share.values()))


@pytest.mark.full
def test_the_best_blind_policy_by_the_question():
    task = environments.lookup("charts")(bars=2, highest=3, ask="bar", twin=True)
    counts = collections.defaultdict(collections.Counter)
    for index in range(task.size("heldout")):
        shown, question = task.text(index, "heldout").split(":")
        counts[question][charts(shown, question, task)] += 1
    best = sum(max(answers.values()) for answers in counts.values()) / task.size("heldout")
    assert drawn.blind(task, "heldout") == pytest.approx(best)
    assert max(drawn.prior(task, "heldout").values()) <= best


@pytest.mark.full
def test_the_page_has_the_best_blind_accuracy():
    page = (pathlib.Path(environments.__file__).parent / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(.+):(.+\?)` \| `(.+)` \| (.+) \| .+ \| ([0-9.]+) % \|$", page, re.M)
    assert {row[0] for row in rows} == {name for name, _ in CASES.values()}
    for name, shown, question, answer, settings, blind in rows:
        task = environments.lookup(name)()
        assert globals()[name](shown, question, getattr(task, "tasks", (task,))[0]) == answer
        assert set(re.findall(r"`(\w+)`", settings)) <= set(inspect.signature(environments.lookup(name)).parameters)
        assert abs(drawn.blind(task, "heldout", 2**14) - float(blind) / 100) < 0.017  # 4 standard errors, and rounding


# --- domains, noise, bad settings -------------------------------------------------------------------------


@pytest.mark.full
def test_several_values_take_turns_as_domains():
    task = make("counting", distractors=(0, 5), noise=0.5)
    assert task.domain_names == ("distractors 0", "distractors 5") and task.pictures == traits.Pictures(1, 32, 32, 16)
    index = np.arange(ROWS, dtype=np.int32)
    prompts, token, verdict = run(task, index, "train")
    twin = make("counting", distractors=(0, 5), twin=True)
    for i, text in enumerate(decode(twin, run(twin, index, "train")[0].token)):
        shown, question = text.split(":")
        right = counting(shown, question, task)
        assert see_counting(np.asarray(prompts.image[i, 0]), task.tasks[0]) == shown
        assert len(shown.split(",")) == 4 + 5 * (i % 2)  # whatever the answer is
        assert (decode(task, token[i : i + 1])[0] == right) == (verdict.outcome[i] == CORRECT)
    assert 0.3 < np.mean(verdict.outcome == CORRECT) < 0.7  # 4 standard errors around 1/2
    captioned = make("counting", distractors=(0, 5), working=True)  # the working is the text of the twin
    done = decode(captioned, jax.jit(lambda i: captioned.demonstrations(i, "train", jax.random.key(0))[0])(index))
    assert all(re.fullmatch(r"(\w+ \w+,?)*;\d", text) for text in done)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("counting", {"pixels": 20}, "pixels: 20 gives grid=3 cells of 6 pixels.* at least 21"),
        ("counting", {"most": 6}, "distractors: 4 and most=6 counted shapes exceed the 9 cells"),
        ("counting", {"distractors": (1, 1)}, r"distractors: \(1, 1\) is not one value, or several different ones"),
        ("counting", {"distractors": (1, 9)}, "distractors: 9 and most=4"),
        ("charts", {"ask": "mean"}, "ask='mean': must be one of 'max', 'bar', 'difference'"),
        ("charts", {"highest": 16}, "pixels: 32 is too few for these bars, which need 33"),
        ("labyrinth", {"length": (1, 7)}, "length: 7 steps are not in every maze; 6 are"),
        ("labyrinth", {"pixels": 16}, "pixels: 16 is too few for cells=4, which need 17"),
        ("screen", {"buttons": (2, 10)}, "buttons: 10 exceed the 9 cells of grid=3"),
        ("screen", {"grid": 5}, "pixels: 32 is too few for grid=5; need 40"),
        ("screen", {"pixels": 1001}, "pixels: 1001 is too many; a place is written in three digits, up to 999"),
        ("scene", {"pixels": 1024}, "pixels: 1024 is too many"),
        ("screen", {"partial": True}, "partial: True needs boxes; set ask='box'"),
        ("scene", {"objects": (2, 5)}, "objects=.*5"),
        ("scene", {"grid": 4, "pixels": 31}, "pixels: 31 is too few for grid=4; need 32"),
        ("geometry", {"pixels": 45}, "pixels: 45 is too few for ask='angle', which needs 46"),
        ("geometry", {"ask": ("side", "length"), "highest": 29}, "pixels: 48 .* ask='side', which needs 49"),
        ("document", {"lines": (3, 5)}, "pixels: 32 is too few for 5 lines, which need 35"),
        ("document", {"lines": 4, "names": 3}, "lines: 4 must be from 2 to names=3"),
        ("counting", {"tokens": 0}, r"tokens=0: must be a whole number in \[1, 4096\]"),
    ],
)
def test_bad_settings(name, settings, words):
    with pytest.raises(ValueError, match=words):
        environments.lookup(name)(**settings)


def test_a_mix_has_pictures_of_one_size():
    one, other = (environments.lookup("counting")(pixels=pixels) for pixels in (32, 48))
    with pytest.raises(ValueError, match=r"small: has .*32.* but large has .*48.* all pictures must be equal"):
        mixed.mix([one, other], ("small", "large"))


def test_a_picture_with_its_text():
    both, picture, twin = (make("charts", ask="max", twin=twin) for twin in ("both", False, True))
    prompts, seen, read = (run(t, np.arange(8, dtype=np.int32), "train")[0] for t in (both, picture, twin))
    np.testing.assert_array_equal(prompts.image, seen.image)
    texts = decode(both, prompts.token)
    assert texts == [characters.PICTURE * 16 + text for text in decode(twin, read.token)]
    assert both.pictures == picture.pictures and both.alphabet == twin.alphabet


@pytest.mark.full
def test_pictures_and_their_twins_take_turns():
    both, picture, twin = (make("counting", twin=twin) for twin in ((False, True), False, True))
    assert both.domain_names == ("twin False", "twin True") and both.pictures == picture.pictures
    prompts = jax.jit(both.prompts, static_argnums=1)(jnp.arange(8), "heldout")
    seen, read = (jax.jit(t.prompts, static_argnums=1)(jnp.arange(4), "heldout") for t in (picture, twin))
    np.testing.assert_array_equal(prompts.image[::2], seen.image)
    assert not np.asarray(prompts.image[1::2]).any()
    for of, whole in ((seen, prompts.token[::2]), (read, prompts.token[1::2])):
        for one, other, mask in zip(np.asarray(whole), np.asarray(of.token), np.asarray(of.mask) > 0, strict=True):
            np.testing.assert_array_equal(one[-mask.sum() :], other[mask])
    with pytest.raises(ValueError, match=r"twin: .* takes turns, and so does distractors"):
        environments.lookup("counting")(twin=(False, True), distractors=(0, 4))
