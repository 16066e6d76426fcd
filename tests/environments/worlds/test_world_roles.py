"""Worlds of two roles, played turn by turn with texts and judged in plain Python."""

import itertools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.environments.worlds import demonstrations
from tests.environments.worlds.wrapper_cases import (
    CORRECT,
    SUMS,
    UNPARSEABLE,
    WRONG,
    answer,
    make,
    play,
    read,
    written,
    wrong,
)

FORM = re.compile(r"(0|[1-9]\d?)([-+*])(0|[1-9]\d?)")


def test_proposals_are_read_as_python_reads_them():
    world = make("propose(attempts=2)")
    given = play(world, 7, [""])[1][0].rstrip("?")
    drawn = random.Random(0)
    texts = ["1+1", "12*34", "9-81", "0-0", "", "1", "+", "1+", "+1", "01+1", "1+00", "1+2+3", "1=2", "123+4", given]
    texts += ["".join(drawn.choices("0123456789+-*=", k=drawn.randint(1, 5))) for _ in range(10)]
    for text in texts:
        form = FORM.fullmatch(text)
        if not form or text == given:
            (reply,), _ = play(world, 7, [text])
            assert reply.done and list(reply.outcome) == [UNPARSEABLE, WRONG], text
            continue
        value = eval(text)
        for attempts in ((str(value), str(value + 1)), (f"0{value}"[:5], str(value)), ("", "-")):
            replies, prompts = play(world, 7, [text, *attempts])
            right = [a == str(value) for a in attempts]
            assert prompts[1:] == [f"{text}="] * 2 and [bool(r.done) for r in replies] == [False, False, True]
            assert [float(r.reward[1]) for r in replies[1:]] == right, (text, attempts)
            assert not any(r.reward[0] for r in replies)
            assert [int(r.domain) for r in replies] == ["+-*".index(form[2])] * 3
            assert list(replies[-1].parts["solver_success"]) == [sum(right) / 2] * 2
            assert int(replies[-1].outcome[0]) == (CORRECT if any(right) else WRONG)


def test_the_extractor_is_paid_the_mean_of_the_attempts_that_read_its_skill():
    world = make(f"extract({SUMS}, length=4, attempts=2)")
    problem, right, false = world.inner.text(1, "train"), answer(world.inner, 1), wrong(world.inner, 1)
    unclosed = written(world, "1234", closed=False)
    for skill, shown in (("12", "12"), ("", ""), (unclosed, "1234")):
        for attempts in ((right, right), (right, false), ("", right), (false, unclosed)):
            replies, prompts = play(world, 1, [skill, *attempts])
            paid = [float(a == right) for a in attempts]
            assert [list(map(float, r.reward)) for r in replies] == [[0, 0], *([p / 2, p] for p in paid)]
            assert prompts == [f"{problem}skill:", *([f"{problem}skill:{shown}use:"] * 2)]
            assert list(replies[-1].parts["success"]) == [sum(paid) / 2] * 2
            assert [int(r.next_seat) for r in replies] == [1, 1, 1] and bool(replies[-1].done)


@pytest.mark.full
def test_votes_are_counted_against_the_spy_and_against_civilians():
    world = make("spy(civilians=2, digits=3)")
    clues = ["a1", "b2", "d1"]  # a card has no fourth digit
    prompts = play(world, 5, clues)[1]
    names = [p[1] for p in prompts]
    cards = [p[3:6] for p in prompts]
    assert [p[0] for p in prompts] == ["s", "c", "c"] and sorted(names) == ["1", "2", "3"]
    assert cards[1] == cards[2] and sum(a != b for a, b in zip(*cards[:2], strict=True)) == 1
    shown = dict(zip(names, ["a1", "b2", "--"], strict=True))
    table = "".join(f" {name}{shown[name]}" for name in sorted(shown))
    for votes in itertools.product([names[0], names[1], "11"], repeat=2):
        replies, prompts = play(world, 5, [*clues, *votes])
        assert prompts[3:] == [f"v{name} {cards[1]}{table}?" for name in names[1:]]
        counted = [v for v, voter in zip(votes, names[1:], strict=True) if v in names and v != voter]
        against = [counted.count(name) for name in names]
        last = replies[-1]
        assert list(last.parts["votes"]) == [against[0], sum(against[1:]) / 2]
        caught = against[0] > max(against[1:])
        assert list(last.outcome) == ([WRONG, CORRECT] if caught else [CORRECT, WRONG])
        assert bool(last.done) and not any(np.any(r.reward) for r in replies)


@pytest.mark.full
def test_experts_of_roles_play_well():
    index = jnp.arange(24, dtype=jnp.int32)
    for text in ("propose(attempts=2)", f"extract({SUMS}, length=4)", "spy(civilians=2, digits=3)"):
        world = make(text)
        rows = jax.jit(lambda key, w=world: demonstrations.chapters(w, index, "train", key))(jax.random.key(2))
        rows = jax.tree.map(np.asarray, rows)
        prompt, prompt_mask, token, mask, seat = rows.prompt.token, rows.prompt.mask, rows.token, rows.mask, rows.seat
        said = [[read(world, token[i, k], mask[i, k]) for k in range(world.max_turns)] for i in range(24)]
        asked = [[read(world, prompt[i, k], prompt_mask[i, k]) for k in range(world.max_turns)] for i in range(24)]
        assert np.all(seat[:, 0] == 0) and np.all(seat[:, 1:] == 1)
        for says, reads in zip(said, asked, strict=True):
            if world.name == "propose":
                assert FORM.fullmatch(says[0]) and says[1:] == [str(eval(says[0]))] * 2
            elif world.name == "extract":
                start = reads[0].partition("=")[0]
                assert says[0] == str(eval(start)) and reads[1] == f"{start}=skill:{says[0]}use:"
            else:
                clues = dict(re.findall(r" (\d)([a-c]\d)", reads[3]))
                names = [r[1] for r in reads]
                for k in (3, 4):
                    doubted = [n for n, clue in clues.items() if reads[k][3 + "abc".index(clue[0])] != clue[1]]
                    assert says[k] != names[k] and (says[k] in doubted or not doubted)
