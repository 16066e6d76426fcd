"""Conversations in rollout dumps, on the page and in the terminal, and statistics of episodes."""

import dataclasses
import functools
import io
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

from rljax import types
from rljax.data import raw_bytes
from rljax.environments.worlds import demonstrations
from rljax.environments.worlds.shipped import guess
from rljax.host import sinks
from rljax.run.evaluation import episodes, passk
from rljax.run.reports import completions, curves, evaluations, records, runs, show_rollouts, turns
from tests.support import tiny

BYTES = raw_bytes.Bytes()
HOSTILE = "<script>alert(1)</script>\x1b[31m"


def recorded(rows, **task):
    """Return the records of rows of ``guess``, with some attributes of the task replaced."""
    program = tiny.program()
    world = dataclasses.replace(guess.guess().bind(BYTES), **task)
    program, setup = dataclasses.replace(program, tokenizer=BYTES), dataclasses.replace(program.setups[0], task=world)
    return json.loads(json.dumps(records.rollouts(program, setup, 3, rows)))


@functools.cache
def conversations():
    """Return expert conversations of ``guess`` as rows of a rollout, with random numbers as the policy's."""
    world = guess.guess().bind(BYTES)
    shown = jax.jit(lambda i, key: demonstrations.conversations(world, i, "train", key))(
        jnp.arange(8, dtype=jnp.int32), jax.random.key(0)
    )
    token, mask, turn, length = (np.asarray(x)[:, 0] for x in (shown.token, shown.mask, shown.turn, shown.length))
    rng = np.random.default_rng(0)
    paid = np.zeros_like(mask)
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    paid[np.arange(8), last] = rng.integers(1, 4, 8)  # on the last token that the seat wrote
    prompt = np.tile(np.array(BYTES.encode("64?"), np.int32), (8, 1))
    normal = lambda: rng.normal(size=mask.shape).astype(np.float32)  # noqa: E731
    return types.Rollout(
        mask=mask,
        reward=np.zeros(8, np.float32),
        group=np.arange(8) // 4,
        index=np.arange(8) // 4,
        episode=np.arange(8),
        agent=np.zeros(8, np.int32),
        context=types.Context(np.pad(prompt, ((0, 0), (1, 0))), np.tile([0.0, 1, 1, 1], (8, 1))),
        action=types.Action(token, length=length),
        turn=turn,
        token_reward=paid,
        advantage=normal(),
        entropy=np.abs(normal()),
        on_policy=np.ones(8),
        valid=np.ones(8),
        outcome=np.full(8, int(types.Outcome.CORRECT)),
        finish=np.full(8, int(types.Finish.STOP)),
        extra={"log_ratio": 0.1 * normal()},
    )


def test_a_record_holds_the_whole_conversation():
    rows = conversations()
    for i, record in enumerate(recorded(rows)):
        said, n = record["turns"], int(rows.action.length[i])
        assert record["prompt"] == "64?" and record["completion"] == BYTES.decode(rows.action.token[i, :n])
        assert "".join(m["text"] for m in said) == record["completion"]
        assert [m["by"] for m in said] == ["policy", "world"] * (len(said) // 2) + ["policy"]
        secret = int(said[-1]["text"])  # the expert wins; every answer of the world must agree with the secret
        for written, answer in zip(said[:-1:2], said[1::2], strict=True):
            assert answer["text"] == ("+" if int(written["text"]) < secret else "-")
            assert written["reward"] == 0 and "reward" not in answer and "advantage" not in answer
            assert answer["turn"] == rows.turn[i, answer["start"]] and written["turn"] == rows.turn[i, written["start"]]
        assert said[-1]["reward"] == record["total"] == rows.token_reward[i].sum() > 0 == record["reward"]
        stops = [*(m["start"] for m in said[1:]), n]
        for message, stop in zip(said, stops, strict=True):
            by_policy = message["by"] == "policy"
            assert (rows.mask[i, message["start"] : stop] == by_policy).all()
            if by_policy:
                mean = rows.advantage[i, message["start"] : stop].mean()
                np.testing.assert_allclose(message["advantage"], mean, rtol=1e-5)
        tokens, mask = record["tokens"], rows.mask[i, :n]
        assert len(tokens["text"]) == n and tokens["mask"] == (mask[0] if (mask == mask[0]).all() else mask.tolist())
        assert completions.spread(tokens)["turn"] == rows.turn[i, :n].tolist()
        for name, values in (("advantage", rows.advantage), ("entropy", rows.entropy)):
            for value, exact, counts in zip(completions.spread(tokens)[name], values[i], mask, strict=False):
                assert value is None if not counts else value == pytest.approx(float(exact), rel=5.1e-4)


def test_the_rows_of_other_players_and_failed_worlds():
    rows = conversations()
    sampled = np.where(rows.mask > 0, -1.0, 0.0)
    other = rows.replace(mask=rows.mask * 0, behaviour_logp=sampled, valid=np.zeros(8))
    mine, theirs = recorded(rows), recorded(other)
    for a, b in zip(mine, theirs, strict=True):
        assert [m["text"] for m in a["turns"]] == [m["text"] for m in b["turns"]] and b["valid"] is False
        assert {m["by"] for m in b["turns"]} <= {"player", "world"} and "invalid" in completions.facts(b)
        assert completions.spread(b["tokens"])["advantage"] == [None] * len(b["tokens"]["text"])
    named = rows.replace(mask=rows.mask * 0, extra={**rows.extra, "written": rows.mask})
    assert [r["turns"] for r in recorded(named)] == [r["turns"] for r in theirs]
    assert "\u220e" not in page(theirs) and shown(theirs)


def test_the_places_of_messages_when_the_middle_is_omitted():
    rng = np.random.default_rng(1)
    for n in (700, 513, 512, 3):
        mine, turn = rng.random(n) < 0.9, np.cumsum(rng.random(n) < 0.01)
        said = list(turns.messages(mine, turn))
        half, omitted = records.LIMIT // 2, max(n - records.LIMIT, 0)
        ids = list(range(n)) if not omitted else [*range(half), *range(n - half, n)]  # what a record describes
        tokens = {"text": ["x"] * len(ids), "omitted": omitted}
        places = turns.spans({"turns": [{"start": m.start} for m in said], "tokens": tokens})
        assert [p.start for p in places] == [0, *(p.stop for p in places[:-1])] and places[-1].stop == len(ids)
        assert sum(p.omitted for p in places) == omitted
        for message, place in zip(said, places, strict=True):
            inside = [at for at in ids if message.start <= at < message.stop]
            assert ids[place.start : place.stop] == inside
            assert place.omitted == message.stop - message.start - len(inside)
            assert (mine[message.start : message.stop] == message.own).all()


# --- the page and the terminal --------------------------------------------------------------------------


def page(rows):
    return completions.section(runs.Run("", {}, rollouts=rows))


def shown(rows, **options):
    out = io.StringIO()
    console = rich.console.Console(
        file=out, width=90, force_terminal=True, color_system="truecolor", _environ={"TERM": "xterm"}
    )
    show_rollouts.show(rows, console=console, **options)
    return out.getvalue()


def test_messages_are_apart_and_only_those_of_the_policy_have_colors():
    rows = recorded(conversations())
    text, said = page(rows), [m for row in rows for m in row["turns"]]
    assert text.count('class="said own"') == sum(m["by"] == "policy" for m in said)
    assert text.count('class="said world"') == sum(m["by"] == "world" for m in said)
    assert text.count("data-from=") == text.count('class="said own"')
    for answer in re.findall(r'class="said world">(.*?)</div>', text, re.DOTALL):
        assert "data-row" not in answer
    assert "8 episodes of 2 prompts, 8 correct" in text and text.count('class="prompt"') == 2
    printed = shown(rows)
    assert "8 completions" in printed and re.search(r"48;2;\d+;\d+;\d+m\d", printed)
    assert not re.search(r"48;2;\d+;\d+;\d+m[+-]", printed)
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in printed.splitlines()]
    assert sum(bool(re.search(r"policy +\d+\u220e +(0|\+\d) ", line)) for line in plain) == text.count(
        'class="said own"'
    )
    assert "token_reward" in text and "48;2" in shown(rows, colour="token_reward")


def dialogue(**fields):
    said = [
        {"by": "policy", "turn": 0, "start": 0, "text": "a", "reward": 0.5},
        {"by": "world", "turn": 1, "start": 1, "text": HOSTILE},
    ]
    tokens = {"text": ["a", HOSTILE], "advantage": [1.0, None], "mask": [1, 0]}
    row = {"step": 1, "index": 0, "group": 0, "prompt": "p", "completion": "a", "reward": 0.0, "total": 0.5}
    return {**row, "turns": said, "tokens": tokens, **fields}


def test_the_rows_of_an_episode_are_together_in_order():
    rows = [dialogue(episode=e, seat=s, prompt=f"card {s}") for e in (5, 6) for s in (0, 1)]
    text = page(rows)
    assert text.count('class="card"') == 2 and text.count('class="given"') == 2 and "2 episodes of 1 prompt" in text
    assert re.findall(r'class="seat">(.*?)<', text) == ["seat 0", "seat 1"] * 2
    printed = shown(rows)
    assert "2 episodes, 4 rows" in printed and printed.index("episode 5") < printed.index("episode 6")
    assert printed.count("card 1") == 2 and "card 1" in shown(rows, prompt="card 0")
    assert HOSTILE not in text and "&lt;script&gt;" in text and "\x1b[31m<" not in printed and "\\x1b" in printed
    chapters = [dialogue(episode=5, seat=0, turns=[{**dialogue()["turns"][0], "turn": k}]) for k in range(3)]
    assert [turns.heading(row, chapters) for row in chapters] == ["turn 0", "turn 1", "turn 2"]


def test_turns_of_chapters_that_did_not_take_place_are_left_out():
    rows = conversations()
    length = np.where(np.arange(8) % 2, 0, rows.action.length)
    rules = dataclasses.make_dataclass(
        "Chapters", [], bases=(guess.Guess,), frozen=True, namespace={"rows": "chapters"}
    )
    kept = recorded(rows.replace(action=rows.action.replace(length=length)), rules=rules())
    assert [r["episode"] for r in kept] == [0, 2, 4, 6]


def test_logs_of_before_are_read_beside_new_ones():
    old = {"step": 1, "index": 7, "group": 3, "prompt": "p", "completion": "1+1", "reward": 1.0}
    coloured = {**old, "group": 4, "tokens": {"text": ["1", "+", "1"], "advantage": 1.0}}
    text = page([old, coloured, dialogue()])
    assert text.count('class="card"') == 3 and text.count('class="said') == 2
    assert "1+1" in shown([old, coloured, dialogue()], prompt="7")
    for row in (old, dialogue()):
        assert row["completion"] in sinks.markdown(row)
    assert "[world]" in sinks.markdown(dialogue())


# --- statistics -----------------------------------------------------------------------------------------


def random_rows(seed, problems=6, samples=5, seats=2, chapters=False):
    """Return rows, and the same as a list of episodes: {problem, turns, valid, truncated, seats: [[outcome, paid]]}."""
    rng = np.random.default_rng(seed)
    made, flat = [], []
    for number in rng.permutation(problems * samples).tolist():
        count = int(rng.integers(1, 5))
        one = {"problem": 10 + number // samples, "turns": count, "valid": rng.random() > 0.1, "seats": {}}
        one |= {"truncated": rng.random() < 0.3, "calls": {}}
        for seat in range(seats):
            outcome, calls = int(rng.choice([0, 1, 2])), int(rng.integers(9))
            paid = rng.normal(size=count if chapters else 1)
            one["seats"][seat], one["calls"][seat] = (outcome, float(sum(paid))), calls
            for part in paid:
                head = (number + 100, one["problem"], seat, outcome, part, count)
                flat.append((*head, float(one["valid"]), float(one["truncated"]), calls))
        made.append(one)
    *columns, calls = map(np.array, zip(*flat, strict=True))
    return episodes.Rows(*columns, parts={"calls": calls}), made


@pytest.mark.parametrize(("seed", "seats", "chapters"), [(0, 1, False), (1, 2, False), (2, 1, True), (3, 2, True)])
def test_statistics_agree_with_loops(seed, seats, chapters):
    rows, made = random_rows(seed, seats=seats, chapters=chapters)
    for judged in range(seats):
        out = json.loads(json.dumps(episodes.statistics(rows, [1, 2, 4, 9], seat=judged)))
        won = lambda e, seat=judged: e["valid"] and e["seats"][seat][0] == 1  # noqa: E731
        good = [e for e in made if e["valid"]]
        mean = lambda values: sum(values) / len(values)  # noqa: E731
        assert out["episodes"] == len(made) == 30 and out["invalid"] == pytest.approx(1 - len(good) / 30)
        right = [sum(won(e) for e in made if e["problem"] == p) for p in range(10, 16)]
        assert out["success"][0] == pytest.approx(sum(right) / 30) == pytest.approx(out["pass_at_k"]["1"][0])
        assert out["success"] == pytest.approx(out["pass_at_k"]["1"])
        assert set(out["pass_at_k"]) == {"1", "2", "4"}  # 9 is above the number of samples
        for k in (1, 2, 4):
            assert out["pass_at_k"][str(k)][0] == pytest.approx(passk.pass_at_k(right, 5, [k]).mean())
        assert out["turns"] == pytest.approx(mean([e["turns"] for e in good]))
        assert out["truncated"] == pytest.approx(mean([e["truncated"] for e in good]))
        assert out["reward"] == pytest.approx(mean([e["seats"][judged][1] for e in good]))
        assert out["parts"] == {"calls": pytest.approx(mean([e["calls"][judged] for e in good]))}
        assert set(out["by_turns"]) == {str(e["turns"]) for e in good}
        for k, part in out["by_turns"].items():
            now, until = ([e for e in good if test(e)] for test in at(int(k)))
            assert part["episodes"] == len(now) and part["share"] == pytest.approx(len(now) / len(good))
            assert part["success"][0] == pytest.approx(mean([won(e) for e in now]))
            assert part["ended"] == pytest.approx(len(until) / len(good))
            assert part["solved"] == pytest.approx(sum(map(won, until)) / len(good))
        for seat in range(seats):
            part = out["by_seat"][str(seat)]
            assert part["episodes"] == len(good)
            assert part["success"][0] == pytest.approx(mean([won(e, seat) for e in good]))
            assert part["reward"] == pytest.approx(mean([e["seats"][seat][1] for e in good]))
            assert part["parts"]["calls"] == pytest.approx(mean([e["calls"][seat] for e in good]))


def at(k):
    return (lambda e: e["turns"] == k), (lambda e: e["turns"] <= k)


def test_all_episodes_invalid_or_rows_malformed():
    rows, _ = random_rows(0)
    out = episodes.statistics(dataclasses.replace(rows, valid=rows.valid * 0), [1])
    assert out["invalid"] == 1 and out["success"][0] == 0 and out["by_turns"] == {} and out["turns"] is None
    json.dumps(out, allow_nan=False)
    assert evaluations.lines(out)
    with pytest.raises(ValueError, match=r"seat: episode \d+ has no row of seat 7"):
        episodes.statistics(rows, [1], seat=7)
    with pytest.raises(ValueError, match=r"turns: got shape \(2,\), must be"):
        dataclasses.replace(rows, turns=np.ones(2))
    with pytest.raises(ValueError, match="problem: the rows of an episode differ"):
        episodes.statistics(dataclasses.replace(rows, problem=np.arange(rows.problem.size)), [1])
    with pytest.raises(ValueError, match="no rows"):
        episodes.Rows(*[np.zeros(0)] * 8)


def test_the_tables_of_episodes():
    made = [episodes.statistics(random_rows(seed, seats=seats)[0], [1, 4]) for seed, seats in ((0, 1), (1, 2))]
    logged = [
        {"name": name, "step": 4, "prompts": 6, "samples": 5, "greedy": [0.5, 0.4, 0.6], "world": world}
        | {"pass_at_k": world["pass_at_k"]}
        for name, world in zip(("base", "result"), made, strict=True)
    ]
    out = io.StringIO()
    evaluations.show_episodes([*logged, {"name": "a task", "step": 1}], rich.console.Console(file=out, width=200))
    text = out.getvalue()
    assert "seat 1: success, %" in text and "calls" in text and "a task" not in text
    assert "ended by then, %" in text and "100.0" in text
    html = curves.evaluations(runs.Run("", {}, evaluations=logged))
    assert "Episodes of result at step 4, by seat" in html and "solved by then, %" in html
    assert "Episodes" not in curves.evaluations(runs.Run("", {}, evaluations=[{**logged[0], "world": None}]))
    _, _, values = sinks.flat(logged[1])
    assert values["world/part/calls"] == made[1]["parts"]["calls"] and values["world/success"] == made[1]["success"][0]
