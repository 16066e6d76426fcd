"""Worlds of two roles, played turn by turn with texts and judged in plain Python."""

import itertools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.environments.worlds import demonstrations
from rljax.environments.worlds.shipped import extract
from tests.environments.worlds.wrapper_cases import (
    CORRECT,
    SUMS,
    UNPARSEABLE,
    WRONG,
    answer,
    compiled,
    make,
    play,
    read,
    told,
    written,
    wrong,
)

FORM = re.compile(r"(0|[1-9]\d?)([-+*])(0|[1-9]\d?)")


@pytest.mark.full
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


def ran(program, value):
    """Return the output of a program in plain Python."""
    for sign, digit in re.findall(r"([-+*])(\d)", program):
        value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[sign] % 10
    return value


@pytest.mark.full
def test_programs_are_run_as_python_runs_them():
    world, drawn, rewards = make("programs(attempts=2, pairs=2)"), random.Random(0), set()
    form, only = re.compile(r"((?:[-+*]\d){1,2}):(\d)"), re.compile(r"(?:[-+*]\d){1,2}")
    for index in range(24):
        kind = "dai"[index % 3]
        given = play(world, index, [""])[1][0]
        assert given[0] == kind and given[-1] == "?" and form.fullmatch(given[1:-1])
        texts = ["+3*2:4", "-7:0", "*5*2:9", given[1:-1], "", "+3", "+3:", ":4", "+3:42", "3+:1", "+3*2*1", "+3 :4"]
        text = texts[index] if index < len(texts) else "".join(drawn.choices("+-*:0123", k=drawn.randint(3, 6)))
        match = form.fullmatch(text)
        if not match or text == given[1:-1]:
            (reply,), _ = play(world, index, [text])
            assert reply.done and list(reply.outcome) == [UNPARSEABLE, WRONG] and not any(reply.reward), text
            continue
        program, value = match[1], int(match[2])
        output = ran(program, value)
        for attempts in (("0", "7"), (str(output), "x"), (program, "*2-4"), ("+0" + program[:2], program + "+0")):
            replies, prompts = play(world, index, [text, *attempts])
            assert prompts[1] == prompts[2]
            if kind == "i":
                pairs = [(int(pair[0]), int(pair[2])) for pair in prompts[1][:-1].split(" ")]
                assert len({x for x, _ in pairs}) == 2 and all(ran(program, x) == y for x, y in pairs)
            else:
                assert prompts[1] == {"d": f"{text}=", "a": f"{program}={output}?"}[kind]
            paid = []
            for said in attempts:
                readable = only.fullmatch(said) if kind == "i" else re.fullmatch(r"\d", said)
                if kind == "i" and readable:
                    right = all(ran(said, x) == ran(program, x) for x in range(10))
                else:
                    right = readable and (ran(program, int(said)) if kind == "a" else int(said)) == output
                paid.append(1.0 if right else -0.5 if readable else -1.0)
            assert [list(map(float, r.reward)) for r in replies] == [[0, 0], *([0, p] for p in paid)], (text, attempts)
            share = paid.count(1.0) / 2
            assert list(replies[-1].parts["solver_success"]) == [share] * 2 and bool(replies[-1].done)
            assert [int(r.domain) for r in replies] == ["dai".index(kind)] * 3
            rewards |= {(kind, p) for p in paid}
    assert len(rewards) == 9  # each kind had right, wrong and unreadable answers


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


def test_a_skill_is_used_on_other_problems_than_the_one_it_was_written_from():
    world = make(f"extract({SUMS}, length=4, attempts=2, others=True)")
    size = world.inner.size("train")
    source, *others = [(1 + n * extract._STRIDE) % size for n in range(3)]
    problems = [world.inner.text(i, "train") for i in (source, *others)]
    right = [answer(world.inner, i) for i in others]
    replies, prompts = play(world, 1, ["12", right[0], wrong(world.inner, others[1])])
    assert prompts == [f"{problems[0]}{answer(world.inner, source)}skill:", *(f"{p}skill:12use:" for p in problems[1:])]
    assert len({*problems}) == 3
    assert [list(map(float, r.reward)) for r in replies] == [[0, 0], [0.5, 1], [0, 0]]
    assert list(replies[-1].parts["success"]) == [0.5] * 2


@pytest.mark.parametrize(("shown", "shared"), [(True, True), pytest.param(False, False, marks=pytest.mark.full)])
def test_seats_answer_one_problem(shown, shared):
    world = make(f"panel({SUMS}, seats=3, shown={shown}, shared={shared})")
    problem, right, false = world.inner.text(1, "train"), answer(world.inner, 1), wrong(world.inner, 1)
    names = set()
    for answers in itertools.product((right, false, "x"), repeat=3):
        if "x" in answers and not shown:
            continue
        said = [text if text != "x" else "" for text in answers]
        replies, prompts = play(world, 1, said)
        assert prompts == [problem + "".join(f"{text}again:" for text in said[:n]) * shown for n in range(3)]
        paid = [[float(a == right) * (shared or seat == n) for seat in range(3)] for n, a in enumerate(answers)]
        assert [list(map(float, r.reward)) for r in replies] == paid
        outcomes = {right: CORRECT, false: WRONG, "x": UNPARSEABLE}
        assert list(replies[-1].outcome) == [outcomes[a] for a in answers]
        assert [bool(r.done) for r in replies] == [False, False, True]
        if not shown:
            ids = list(map(float, replies[-1].parts["answer"]))
            assert [x == y for x in ids for y in ids] == [x == y for x in answers for y in answers]
            names |= {*zip(answers, ids, strict=True)}
    assert len(names) == 2 * (not shown)  # equal texts have equal ids in all episodes


def test_an_examiner_is_paid_for_true_verdicts():
    world = make(f"examine({SUMS})")
    problem, right, false = world.inner.text(1, "train"), answer(world.inner, 1), wrong(world.inner, 1)
    for text, correct in ((right, True), (false, False), ("", False)):
        for verdict in ("right", "wrong", "1right", "1wrong", "", "1", written(world, "right", closed=False)):
            replies, prompts = play(world, 1, [text, verdict])
            assert prompts == [problem, f"{problem}{text}judge:"]
            says = [isinstance(verdict, str) and verdict.endswith(word) for word in ("wrong", "right")]
            true = says[correct]
            assert [list(map(float, r.reward)) for r in replies] == [[correct, 0], [0, true]]
            last = replies[-1]
            assert list(last.parts["praise"]) == [says[True], 0] and list(last.parts["verdict"]) == [0, true]
            missed = CORRECT if correct else WRONG if text else UNPARSEABLE
            assert list(last.outcome) == [missed, CORRECT if true else WRONG]
            assert [bool(r.done) for r in replies] == [False, True]


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


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("messages", [True, False])
def test_both_are_paid_if_they_name_the_same_item(messages):
    world = make(f"agree(items=3, worths=3, messages={messages})")
    talk, drawn = ["x", "?"] * messages, random.Random(0)
    agreed = set()
    for index in range(4):
        _, prompts = play(world, index, [*talk, "", ""])
        shown = [dict(item for item in prompt.split(" ")) for prompt in prompts[-2:]]
        assert shown[0] == shown[1] and len(shown[0]) == 3
        for names in itertools.product([*shown[0], drawn.choice("yz")], repeat=2):
            replies, _ = play(world, index, [*talk, *names])
            if messages:
                assert [[told(world, r, seat) for seat in (0, 1)] for r in replies[:2]] == [["", "x"], ["?", ""]]
            assert not any(told(world, r, seat) for r in replies[2 * messages :] for seat in (0, 1))
            same = names[0] == names[1] and names[0] in shown[0]
            share = int(shown[0][names[0]]) / max(map(int, shown[0].values())) if same else 0
            last = replies[-1]
            np.testing.assert_allclose(last.reward, share, rtol=1e-6)
            assert not any(np.any(r.reward) or r.done for r in replies[:-1]) and last.done
            missed = [WRONG if name in shown[0] else UNPARSEABLE for name in names]
            assert list(last.outcome) == ([CORRECT] * 2 if share == 1 else missed)
            assert list(last.parts["agreed"]) == [same] * 2
            agreed.add((same, share == 1))
    assert len(agreed) == 3


def bargained(counts, values, texts):
    """Return what each turn is told, and shares and outcomes of both seats after the last one, in plain Python."""
    said, offer = [], None
    for turn, text in enumerate(texts):
        seat = turn % 2
        whole = [sum(c * v for c, v in zip(counts, value, strict=True)) for value in values]
        if text == "y" and offer:
            has = {1 - seat: offer, seat: [c - o for c, o in zip(counts, offer, strict=True)]}
            shares = [sum(h * v for h, v in zip(has[s], values[s], strict=True)) / whole[s] for s in (0, 1)]
            each = [max(v / w for v, w in zip(pair, whole, strict=True)) for pair in zip(*values, strict=True)]
            best = sum(c * e for c, e in zip(counts, each, strict=True))
            said.append(["", "y"] if seat == 0 else ["y", ""])
            return said, shares, [CORRECT if s >= 0.5 else WRONG for s in shares], sum(shares) / best
        numbers = [int(c) for c in text if c.isdigit()]
        fits = len(text) == len(numbers) == len(counts) and all(n <= c for n, c in zip(numbers, counts, strict=True))
        offer = numbers if fits else None
        said.append((["", text] if seat == 0 else [text, ""]) if fits else ["?", "?"])
    outcome = [WRONG if fits or s != seat else UNPARSEABLE for s in (0, 1)]
    return said, [0, 0], outcome, 0


def bargains(world, index):
    """Return the numbers of items and the values of both seats."""
    prompts = [prompt.split(":") for prompt in play(world, index, ["", ""])[1]]
    assert prompts[0][0] == prompts[1][0]
    return [[int(c) for c in digits] for digits in (prompts[0][0], prompts[0][1], prompts[1][1])]


@pytest.mark.full
def test_deals_divide_what_was_offered():
    world, drawn, ends = make("bargain(turns=4, most=2)"), random.Random(0), set()
    for index in range(40):
        counts, *values = bargains(world, index % 5)
        texts = []
        while len(texts) < 4 and not (texts and sum(bargained(counts, values, texts)[1])):  # until a deal
            offer = "".join(str(drawn.randint(0, c)) for c in counts)
            texts.append(drawn.choice([offer, offer, "y", "y", "", "999", offer[:2], "y1"]))
        said, shares, outcome, joint = bargained(counts, values, texts)
        replies, _ = play(world, index % 5, texts)
        assert [[told(world, r, seat) for seat in (0, 1)] for r in replies] == said
        np.testing.assert_allclose(replies[-1].reward, shares, rtol=1e-6)
        np.testing.assert_allclose(replies[-1].parts["joint"], joint, rtol=1e-6)
        assert list(replies[-1].outcome) == outcome and list(replies[-1].parts["agreed"]) == [sum(shares) > 0] * 2
        assert [bool(r.done) for r in replies] == [False] * (len(texts) - 1) + [True]
        ends.update(outcome)
    assert ends == {CORRECT, WRONG, UNPARSEABLE}


def demonstrated(world, index):
    """Return the texts of an episode in which the expert writes every turn."""
    begin, _, step = compiled(world)
    state, seat, texts, over = begin(jnp.int32(index)), jnp.int32(0), [], False
    expert = jax.jit(world.expert)
    while not over:
        token, mask = expert(state, seat, jax.random.key(len(texts)))
        texts.append(read(world, token, mask))
        state, reply = step(state, seat, token, mask)
        seat, over = reply.next_seat, bool(reply.done)
    return texts


@pytest.mark.full
def test_experts_concede_and_follow_a_focal_rule():
    world = make("bargain(turns=4, most=2)")
    for index in range(6):
        counts, *values = bargains(world, index)
        *offers, last = demonstrated(world, index)
        assert last == "y" and "y" not in offers and len(offers) < 4

        def value(division, seat, values=values):
            return sum(n * v for n, v in zip(division, values[seat], strict=True))

        for turn in range(len(offers) + 1):  # also what the last writer would have demanded
            demand = (1 - 0.5 * turn / 3) * value(counts, turn % 2)
            every = [d for d in itertools.product(*(range(c + 1) for c in counts)) if value(d, turn % 2) >= demand]
            fewest = min(every, key=lambda d, turn=turn: (sum(d), -value(d, turn % 2), d))
            left = [c - int(o) for c, o in zip(counts, offers[turn - 1], strict=True)] if turn else counts
            accepts = turn > 0 and (value(left, turn % 2) >= value(fewest, turn % 2) or turn == 3)
            assert accepts == (turn == len(offers))
            assert accepts or tuple(map(int, offers[turn])) == fewest
    for call, focal in (("agree()", True), ("agree(focal=0.0, messages=True)", False)):
        world = make(call)
        for index in range(6):
            texts = demonstrated(world, index)
            prompts = [prompt.split(" ") for prompt in play(world, index, [""] * len(texts))[1][:2]]
            best = [[name for name, worth in prompt if worth == max(w for _, w in prompt)] for prompt in prompts]
            assert texts == [min(best[0]) if focal else best[0][0]] * len(texts)
            assert sorted(prompts[0]) == sorted(prompts[1]) and sorted(best[0]) == sorted(best[1])


@pytest.mark.full
def test_experts_of_roles_play_well():
    index = jnp.arange(24, dtype=jnp.int32)
    calls = ("propose(attempts=2)", "programs(attempts=2)", f"extract({SUMS}, length=4)", "spy(civilians=2, digits=3)")
    for text in calls:
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
            elif world.name == "programs":
                program, value = says[0].split(":")
                kind, output, answer = reads[0][0], ran(program, int(value)), says[1]
                assert says[2] == answer == {"d": f"{output}", "a": value, "i": program}[kind]
            elif world.name == "extract":
                start = reads[0].partition("=")[0]
                assert says[0] == str(eval(start)) and reads[1] == f"{start}=skill:{says[0]}use:"
            else:
                clues = dict(re.findall(r" (\d)([a-c]\d)", reads[3]))
                names = [r[1] for r in reads]
                for k in (3, 4):
                    doubted = [n for n, clue in clues.items() if reads[k][3 + "abc".index(clue[0])] != clue[1]]
                    assert says[k] != names[k] and (says[k] in doubted or not doubted)


def test_a_judge_pays_the_answer_that_it_prefers():
    world = make(f"contest({SUMS})")
    problem, right, false = world.inner.text(1, "train"), answer(world.inner, 1), wrong(world.inner, 1)
    for answers in ((right, false), (false, right), (right, right), ("", false)):
        solved = [float(text == right) for text in answers]
        for verdict in ("first", "second", "2second", "third", "", written(world, "first", closed=False)):
            replies, prompts = play(world, 1, [*answers, verdict])
            assert prompts == [problem, problem, f"{problem}{answers[0]}/{answers[1]}/better:"]
            says = [isinstance(verdict, str) and verdict.endswith(word) for word in ("first", "second")]
            chosen = says.index(True) if any(says) else None
            equal = solved[0] == solved[1]
            true = 0.0 if chosen is None else 0.5 if equal else solved[chosen]
            assert not any(r.reward.any() or r.done for r in replies[:2]) and replies[2].done
            last = replies[2]
            assert list(map(float, last.reward)) == [*map(float, says), true]
            assert list(last.parts["preferred"]) == [*says, 0] and list(last.parts["verdict"]) == [0, 0, true]
            assert list(last.parts["solved"]) == [*solved, 0]
            judged = CORRECT if true == 1 else WRONG if chosen is not None else UNPARSEABLE
            answered = [CORRECT if text == right else WRONG if text else UNPARSEABLE for text in answers]
            assert list(last.outcome) == [*answered, judged]
