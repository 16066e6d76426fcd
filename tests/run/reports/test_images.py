"""Pictures on the page and in the terminal; ``test_pictures`` has those in records."""

import base64
import functools
import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from rljax.environments import traits
from rljax.environments.control.shipped import point_maze
from rljax.models import actors
from rljax.run.reports import trajectories
from rljax.run.reports.pages import images
from tests.environments import test_drawn as drawn_tasks


def decoded(source):
    head, content = source.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(content))))


def test_large_pictures_are_reduced_and_proportions_stay():
    wide = np.random.default_rng(0).integers(0, 256, (1, 300, 600, 3)).astype(np.uint8)
    assert decoded(images.sources(wide)[0]).shape == (128, images.LARGEST, 3)


def test_a_page_shows_addresses_of_pictures_only():
    shown = images.shown([{"pictures": images.sources(np.zeros((2, 4, 4, 3), np.uint8))}])
    assert shown.count("<img") == 2 and shown.count("data:image/png;base64,") == 2
    for address in ("javascript:alert(1)", "https://example.org/a.png", 'data:image/png;base64,A" onload="x'):
        assert images.shown([{"pictures": [address]}]) == "" and images.shown([{}]) == ""


@pytest.mark.full
@pytest.mark.parametrize("ask", ["click", "box"])
def test_places_of_completions_and_the_box_asked(ask):
    """The twin writes the box; the rows are its demonstrations, most of them wrong, and texts that are not in form."""
    settings = {"ask": ask, "noise": 0.3, "buttons": (2, 4)}
    task, twin = drawn_tasks.make("screen", **settings), drawn_tasks.make("screen", **settings, twin=True)
    assert isinstance(task, traits.Marking) and twin.marks(0, "train", "1,2") is None
    index = np.arange(12, dtype=np.int32)
    prompts, texts, _ = drawn_tasks.run(twin, index, "train")
    kinds = set()
    for i, (prompt, text) in enumerate(
        zip(drawn_tasks.decode(twin, prompts.token), drawn_tasks.decode(twin, texts), strict=True)
    ):
        (written,), ((left, top, right, bottom),) = task.marks(i, "train", text)
        box = drawn_tasks.box_of(*prompt.split(":"))
        assert [left * 32, top * 32, right * 32 - 1, bottom * 32 - 1] == box
        numbers = [*map(int, text.split(","))]
        if ask == "click":
            assert [x * 32 - 0.5 for x in written] == numbers
        else:
            assert [x * 32 - (n > 1) for n, x in enumerate(written)] == numbers
            kinds.add(numbers == box)
        assert all(task.marks(i, "train", wrong)[0] == [] for wrong in ("", "1", f"{text},3", text[:-1] + "a"))
    assert ask == "click" or kinds == {True, False}


def test_a_page_draws_the_places_over_the_picture():
    picture = images.sources(np.zeros((1, 4, 4, 3), np.uint8))
    rows = [
        {"pictures": picture, "targets": [[0.25, 0, 0.5, 0.5]], "marks": [[0.1, 0.2]], "outcome": "correct"},
        {"marks": [[0, 0, 1, 1]], "outcome": "wrong", "reward": 0.25},
        {"marks": []},
    ]
    page = images.shown(rows)
    paths = re.findall(r'<path d="(.+?)" class="(.+?)"><title>(.+?)</title>', page)
    assert paths == [
        ("M0.2500 0.0000H0.5000V0.5000H0.2500Z", "under", "asked"),
        ("M0.1000 0.2000h0", "right point", "completion 1: reward 0"),
        ("M0.0000 0.0000H1.0000V1.0000H0.0000Z", "wrong", "completion 2: reward 0.25"),
        ("M0.2500 0.0000H0.5000V0.5000H0.2500Z", "asked", "asked"),
    ]
    assert "<svg" not in images.shown([{"pictures": picture}])


def test_a_terminal_shows_two_rows_of_pixels_in_a_line():
    picture = np.array([[[255, 0, 0]], [[0, 0, 255]], [[0, 255, 0]]], np.uint8)
    text = images.blocks(picture)
    assert text.plain == "\u2580\n\u2580\n"
    assert [str(span.style) for span in text.spans] == [
        "rgb(255,0,0) on rgb(0,0,255)",
        "rgb(0,255,0) on rgb(255,255,255)",
    ]


def test_a_chain_that_ends_in_the_only_action_is_drawn_as_a_path():
    """Of 96 x 96 pixels over [-2, 2]^2: from (-1, 1) to (1, 1), whole or a step at each position."""
    states = np.array([[-1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    pairs = np.stack([states[:-1], states[1:]], axis=1)[None]
    for taken in (states[None, None], pairs):
        count = taken.shape[1]
        motion = actors.Motion(np.ones((1, count + 1, 2)), np.pad(taken, ((0, 0), (0, 1), (0, 0), (0, 0))))
        image = trajectories.picture(motion, 0, np.arange(count))
        assert image.shape == (96, 96, 3)
        blue, red = (np.all(image == np.array(rgb), axis=-1) for rgb in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)))
        assert np.all(blue[24, 26:68]) and red[24, 72] and not blue[:22].any() and not red[:, :68].any()
        motion = motion.replace(observation=np.arange(2.0 * (count + 1)).reshape(1, -1, 2))
        assert trajectories.picture(motion, 0, np.arange(count)).shape == (96, 256, 3)


@pytest.mark.full
def test_a_way_through_a_maze_is_drawn_over_its_walls():
    """Every wall between two cells, or around the maze, is where a point at the middle of a cell is stopped."""
    rules = point_maze.PointMaze(side=4)
    seen = np.zeros((2, rules.observed))
    seen[:, :2] = [(-0.75, -0.75), (-0.25, -0.75)]  # the middles of the first two cells
    walls, path, goal = rules.plan(3, "train", seen)
    np.testing.assert_allclose(path, [(1 / 8, 1 / 8), (3 / 8, 1 / 8)])
    state = rules.begin(jnp.int32(3), "train")
    assert tuple(np.floor(goal * 4)) == (state["goal"] % 4, state["goal"] // 4)
    middles = {tuple(x) for x in np.round(walls.mean(axis=1) * 8).astype(int)}
    for cell in range(16):
        for push in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)):
            at = {**state, "place": rules._middle(cell), "velocity": 0.9 * jnp.array(push)}
            bumps = rules.step(at, jnp.array(push), jax.random.key(0))[1].parts["bumps"]
            place = (2 * (cell % 4) + 1 + int(push[0]), 2 * (cell // 4) + 1 + int(push[1]))
            assert (place in middles) == bool(bumps)
    motion = actors.Motion(seen[None], np.zeros((1, 2, 2)))
    image = trajectories.picture(motion, 0, np.arange(1), functools.partial(rules.plan, 3, "train"))
    blue, wall = (np.all(image == np.array(rgb), axis=-1) for rgb in ((0x00, 0x72, 0xB2), (0x99, 0x99, 0x99)))
    assert blue[12, 14:32].all() and wall[0, :24].all() and wall[:24, 0].all()
