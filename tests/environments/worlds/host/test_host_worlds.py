"""Host worlds: what is told, worker processes and their failures, tokens between turns."""

import functools
import json
import time

import pytest

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import outcomes
from rljax.environments.workers import worker
from rljax.environments.worlds.host import Observation, episodes, instances, records
from tests.support import talking

# --- records --------------------------------------------------------------------------------------


def test_records_are_json():
    reply = records.observation(Observation("a", 0.1, True, "correct", {"p": 1 / 3}), "tool")
    assert reply.messages == ({"role": "tool", "content": "a"},) and reply.text == "a" and reply.over and reply.valid
    begun = records.opening([{"role": "system", "content": "s"}, {"role": "user", "content": "ü\n"}])
    for record in (
        reply,
        begun,
        records.Answer.failed("timed_out", "5 s"),
        records.Begun.failed("crashed", "x" * 9000),
    ):
        again = type(record).from_json(json.loads(json.dumps(record.to_json())))
        assert again == record and again.valid == (not record.error)
    mapping = {"text": {"role": "user", "content": "b"}, "done": False}
    assert records.observation(mapping, "tool").messages == ({"role": "user", "content": "b"},)
    assert records.observation(Observation(), "user").messages == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "of type NoneType; expected an Observation"),
        ("text", "expected an Observation"),
        ({"reward": 1.0}, "lacks 'text'"),
        ({"text": "", "rewards": 1.0}, "'rewards'; its names are text, reward"),
        (Observation(b"\x00"), "expected a text or messages"),
        (Observation(["a"]), "a message is"),
        (Observation({"role": "user"}), "a message is"),
        (Observation({"role": "user", "content": b"a"}), "content b'a' of type bytes"),
        (Observation("\udcff"), "binary data"),
        (Observation("a\0"), "binary data"),
        (Observation("x" * (records.LONGEST + 1)), "characters at once; allowed: 1,048,576"),
        (Observation("", float("inf")), "finite"),
        (Observation("", "1"), "of type str"),
        (Observation("", 1e39), "at most 1e.15 in size"),
        (Observation("", done=1), "done 1 of type int; expected a bool"),
        (Observation("", outcome="right"), "allowed: wrong, correct"),
        (Observation("", parts={"reward": 1.0}), "a field of Observation"),
        (Observation("", parts={"x": "y"}), "part 'x'"),
    ],
)
def test_what_is_no_observation_is_named(value, words):
    with pytest.raises((ValueError, TypeError), match=words):
        records.observation(value, "user")


@pytest.mark.parametrize(
    "change",
    [{"reward": "1"}, {"outcome": "crashed"}, {"error": "e"}, {"done": 0}, {"messages": 3}, {"more": 1}, {"parts": []}],
)
def test_a_forged_record_is_refused(change):
    with pytest.raises(ValueError, match="not a record"):
        records.Answer.from_json({**records.Answer(outcome="correct").to_json(), **change})


# --- worker processes -----------------------------------------------------------------------------


def play(game, turns):
    """Play episodes by the texts of their turns; return what each turn was told, and when."""
    replies, begin = {}, time.monotonic()
    for episode, texts in turns.items():
        game.submit(episode, 0, texts[0])
    while game.waiting:
        for (episode, number), answer in game.ready(5.0).items():
            replies[episode, number] = answer, time.monotonic() - begin
            if not answer.over and number + 1 < len(turns[episode]):
                game.submit(episode, number + 1, turns[episode][number + 1])
    return replies


FAILURES = {
    "hang": ("timed_out", "step(): no answer after 0.8 s"),
    "fail": ("crashed", "RuntimeError: the tool is broken"),
    "leave": ("crashed", "SystemExit: 3"),
    "die": ("crashed", "step(): a worker exited with status 3.*and so did the one before"),
    "eat": ("crashed", "MemoryError"),
    "binary": ("crashed", "TypeError: step said b'"),
    "null": ("crashed", "binary data"),
    "endless": ("crashed", "2,097,152 characters at once"),
    "infinite": ("crashed", "'reward' is nan"),
    "nothing": ("crashed", "done 'yes' of type str"),
    "says": ("crashed", "returned outcome 'crashed'"),
}


@pytest.fixture(scope="module")
def game():
    """Two workers of one pool for all tests."""
    with episodes.Episodes(
        functools.partial(talking.Echo, 3), VerifierConfig(workers=2, timeout=0.8, memory=8)
    ) as opened:
        yield opened


def test_failures_end_their_own_episode_only(game):
    """Healthy episodes share both workers with those that kill them, and are built again."""
    names = list(FAILURES)
    texts = {n: ["a", name, "b"] for n, name in enumerate(names)}
    healthy = {n: ["rolls", "print", "c"] for n in range(100, 106)}
    begun = game.begin({n: n for n in [*texts, *healthy]}, seeds={n: (0, n) for n in healthy})
    assert all(begun[n].messages == ({"role": "user", "content": f"Begin {n}."},) for n in begun)
    replies = play(game, texts | healthy)
    for n, name in enumerate(names):
        answer, _ = replies[n, 1]
        outcome, reason = FAILURES[name]
        assert (answer.outcome, answer.valid, answer.reward, answer.messages) == (outcome, False, 0, ()), name
        assert reason.partition(".*")[0] in answer.error and reason.rpartition(".*")[2] in answer.error, answer.error
        assert replies[n, 0][0].text == "a1" and (n, 2) not in replies
    assert {replies[n, 1][0].text for n in healthy} == {"printed"}
    last = [replies[n, 2][0] for n in healthy]
    assert all(t.done and t.valid and t.text == "c3" and t.parts == {"turn": 3.0} for t in last)
    assert last[0].outcome == "unjudged"  # the rewards are 0.5 each
    assert len({replies[n, 0][0].text for n in healthy}) == len(healthy)  # each episode rolls its own number
    with episodes.Episodes(
        functools.partial(talking.Echo, 3), VerifierConfig(workers=0)
    ) as here:  # in this process: the same
        here.begin({n: n for n in healthy}, seeds={n: (0, n) for n in healthy})
        assert {k: t for k, (t, _) in play(here, healthy).items()} == {k: replies[k][0] for k in replies if k[0] >= 100}
        here.end(healthy)
    with pytest.raises(ValueError, match="episode 0 is over"):
        game.submit(0, 2, "again")
    with pytest.raises(ValueError, match="episode 99 has not begun"):
        game.submit(99, 0, "again")
    with pytest.raises(ValueError, match="episode 0 has begun before"):
        game.begin({0: 0})
    game.end(begun)
    assert not game.waiting and game.ready(0.0) == {}


def test_a_world_that_does_not_begin(game):
    begun = game.begin({200: "hang", 201: "empty", 202: "fine"})
    assert [begun[n].outcome for n in (200, 201, 202)] == ["timed_out", "crashed", ""]
    assert begun[200].error.startswith("reset(): no answer after 0.8 s")
    assert begun[202].valid and "returned no text" in begun[201].error
    game.end(begun)


def test_a_slow_episode_holds_up_no_other():
    with episodes.Episodes(talking.Echo, VerifierConfig(workers=2, timeout=3.0)) as game:
        game.begin(dict.fromkeys(range(8), 0))
        replies = play(game, {0: ["slow", "b"]} | {n: ["a", "b"] for n in range(1, 8)})
    slow = replies[0, 0][1]
    assert slow >= 1.2 and all(replies[n, 1][1] < slow - 0.3 for n in range(1, 8))
    assert all(replies[n, 1][0].valid and replies[n, 1][0].outcome == "correct" for n in range(8))


def test_coroutines_are_played_as_functions_are():
    turns = {n: ["1", "2", "3", "4"] for n in range(4)}

    def played(made, workers, concurrency=1):
        limits = VerifierConfig(workers=workers, timeout=20, concurrency=concurrency)
        with episodes.Episodes(made, limits) as game:
            begun = game.begin({n: n for n in turns})
            replies = {k: t for k, (t, _) in play(game, turns).items()}
            game.end(turns)
            return begun, replies

    plain = played(talking.Count, 0)
    assert all(t.valid for t in plain[1].values()) and len(plain[1]) == 2 * 2 + 2 * 3
    assert played(talking.Awaited, 0) == played(talking.Awaited, 1) == played(talking.Awaited, 1, 3) == plain


def test_an_episode_is_resumed_from_its_record_or_refused(game):
    turns = {300: ["rolls", "b", "rolls"]}
    begun = game.begin({300: 7}, {300: (1, 2)})[300]
    replies = {number: answer for (_, number), (answer, _) in play(game, turns).items()}
    text = json.dumps([begun.to_json(), *(replies[n].to_json() for n in range(2))])
    first, *rest = json.loads(text)
    record = records.Begun.from_json(first), [*zip(turns[300], map(records.Answer.from_json, rest), strict=False)]
    game.resume(301, 7, *record, seeds=(1, 2))
    game.submit(301, 2, "rolls")
    assert game.ready(5.0) == {(301, 2): replies[2]}
    game.resume(302, 7, *record, seeds=(1, 3))  # it rolls another number
    game.submit(302, 2, "rolls")
    failed = game.ready(5.0)[302, 2]
    assert failed.outcome == "crashed" and "turn 0: in another process the world gave another answer" in failed.error
    game.end([300, 301, 302])


def test_a_world_that_changes_its_answers_does_not_count():
    with episodes.Episodes(talking.Shifty, VerifierConfig(workers=1, timeout=0.5)) as game:
        game.begin({0: 0, 1: 1})
        replies = play(game, {0: ["hang"], 1: ["a"]})
        assert replies[0, 0][0].outcome == "timed_out"
        assert replies[1, 0][0].outcome == "crashed" and "another answer" in replies[1, 0][0].error


def test_classes_that_workers_cannot_import():
    class Inner:
        pass

    with pytest.raises(ValueError, match="world: worker processes cannot import"):
        episodes.Episodes(Inner)
    with pytest.raises(ValueError, match="workers=-1"):
        episodes.Episodes(talking.Echo, VerifierConfig(workers=-1))
    with pytest.raises(RuntimeError, match="inside `with Episodes"):
        episodes.Episodes(talking.Echo).begin({0: 0})


def test_what_is_no_answer_is_an_error():
    assert set(outcomes.FAILURES) == {"timed_out", "crashed"}
    assert worker.answered(instances.Instances(talking.Echo), "begin", (0, "empty", (0, 0)))[1]
