"""Host worlds of several seats: against the same world in the graph, in slots, replayed, and refused."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.config import resolve
from rljax.data import tokenizers
from rljax.environments.workers import pool
from rljax.run import loop, producers, programs
from rljax.run.producers import answered, conversations, verified
from rljax.run.records import journals
from rljax.training import rows as rows_lib
from rljax.training.producers import play
from tests.data import test_public_tokenizer as public
from tests.environments.worlds.host import test_host_tokens
from tests.run.producers import test_host_driver as driver
from tests.support import relay, tiny

PROMPTS, SAMPLES, SEATS = 6, 4, 2
ROWS = PROMPTS * SAMPLES * SEATS
INDEX = np.arange(PROMPTS, dtype=np.int32)
DRAWN = rows_lib.Drawn(INDEX + 100, INDEX, np.zeros_like(INDEX))
SIZES = {"batch__prompts": PROMPTS, "batch__samples": SAMPLES}
HOST = "world('tests.support.relay:Relay', max_turns=5, turn_length=3, reply_length=2, prompt_length=3"
CUT = 9  # tokens of a row, which cut turns and replies
BOTH = ("policy", "snapshot")


@functools.cache
def both(length=None, players=("policy",), slots=0):
    """Return the programs of the world in the graph and on the host, and the parameters of two players."""
    fields = {"world__players": players, **SIZES}
    graph = tiny.program(task=f"tests.support.relay.inside(length={length})", **fields)
    config = tiny.config(mesh__data=1, task=f"{HOST}, completion_length={length or 0})", verifier__workers=0, **fields)
    config.sampler.slots = slots
    host = programs.build(config, graph.tokenizer, jax.devices()[:1])
    likely = {i: 4.0 for c in relay.DIGITS + "ab?" for i in graph.tokenizer.encode(c)} | {graph.tokenizer.eos: 4.3}

    def player(seed):  # the embedding is tied, so that tokens of the world are likely
        params = graph.steps[0].begin(None, jax.random.key(seed), None).params["policy"]
        first = [likely.get(i, -4.0) for i in range(params["embedding"].shape[0])]
        return {**params, "embedding": params["embedding"].at[:, 0].set(jnp.array(first))}

    return graph, host, (player(0), player(1))


def outside(length=None, players=("policy",), slots=0, workers=0, journal=None, step=0):
    """Return the rows of the class."""
    _, host, params = both(length, players, slots)
    setup = tiny.changed(host.setups[0], verifier={"workers": workers, "timeout": 5.0})
    batch = DRAWN, "train", host.key, SAMPLES, setup.settings.sampler
    with producers.workers(setup) as opened:
        producer = answered.Answered(host, host.steps[0], opened, journal or journals.Journal())
        of_players = {"policy": params[0]} | ({"snapshot": params[1]} if "snapshot" in players else {})
        return jax.device_get(producer.played(of_players, *batch, step, "a test"))


@functools.cache
def inside(length=None, players=("policy",)):
    """Return the rows of the rules."""
    graph, _, params = both(length, players)

    def run(params):
        named = dict(zip(BOTH, params, strict=True))
        rows, player = play.seated(graph.setups[0], named, players, jnp.int32(0), DRAWN, "train", graph.key)
        return play.learning(graph.setups[0], rows, player) if "snapshot" in players else rows

    return jax.device_get(jax.jit(run)(params))


def without(rows, *names):
    """Return rows without fields, and without the slots of the decoder."""
    extra = {name: x for name, x in rows.extra.items() if name != "slots"}
    return rows.replace(extra=extra, **dict.fromkeys(names))


LOGPS = ("behaviour_logp", "raw_logp", "entropy", "square_prob")


def equal(one, two, *unlike):
    """Assert that rows of two shapes are equal, their numbers to rounding."""
    for name in LOGPS:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-5, err_msg=name)
    driver.same(*(without(rows, *LOGPS, *unlike) for rows in (one, two)))


@pytest.mark.full
@pytest.mark.parametrize("players", [("policy",), BOTH])
def test_the_graph_and_the_host_form_agree_token_for_token(players):
    graph, host, _ = both(None, players)
    rows = outside(None, players)
    assert host.tasks[0].completion_length == graph.tasks[0].completion_length and rows.reward.size == ROWS
    equal(inside(None, players), rows)
    np.testing.assert_array_equal(rows.agent, np.arange(ROWS) % SEATS)
    np.testing.assert_array_equal(rows.episode, np.arange(ROWS) // SEATS)
    wrote = rows.extra["written"] if "snapshot" in players else rows.mask
    turns = np.where(wrote > 0, rows.turn, -1).max(axis=1) + 1
    silent = (turns == 0) & (rows.agent == 1)
    assert silent.any() and rows.reward[silent].any()  # paid before it wrote, and told something
    assert np.any(rows.action.length[silent] > 0) and np.any(turns.reshape(-1, 2).sum(axis=1) == relay.TURNS)
    assert np.any((turns.reshape(-1, 2)[:, 1] > 1) & (turns.reshape(-1, 2)[:, 0] == 1))  # seat 1 wrote twice
    if "snapshot" in players:
        ours = (np.arange(SEATS)[None, :] + np.arange(PROMPTS * SAMPLES)[:, None] % SAMPLES) % 2 == 0
        np.testing.assert_array_equal(rows.valid > 0, ours.reshape(-1))
        assert not rows.mask[~ours.reshape(-1)].any() and rows.extra["written"][~ours.reshape(-1)].any()


@pytest.mark.full
def test_rows_that_are_cut_hold_the_same_tokens_in_both_forms():
    rows = outside(CUT)
    full = rows.action.length == CUT
    assert {0, 1} <= set(rows.mask[full, -1])  # within replies, and within turns
    # a turn without its end is "?" to the rules, whereas the class reads what there is of it
    equal(inside(CUT), rows, "outcome", "parts", "token_reward", "reward", "finish", "valid")


@pytest.mark.full
@pytest.mark.parametrize("players", [("policy",), BOTH])
def test_episodes_that_take_turns_in_fewer_slots_are_the_same(players):
    rows = outside(None, players)
    equal(rows, outside(None, players, slots=SEATS * SAMPLES, workers=2))


@pytest.mark.full
def test_a_journal_cut_anywhere_gives_the_same_rows(tmp_path):
    path = tmp_path / "turns.jsonl"

    def attempt():
        relay.Relay.calls = 0
        return outside(players=BOTH, journal=journals.Journal(tmp_path, 2, "judge"), step=2), relay.Relay.calls

    whole, calls = attempt()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == calls + PROMPTS * SAMPLES
    for kept in range(0, len(lines) + 1, 9):
        path.write_bytes(b"".join(lines[:kept]))
        again, made = attempt()
        driver.same(whole, again)
        assert made <= calls and sorted(path.read_bytes().splitlines(keepends=True)) == sorted(lines)
    assert made < calls


# --- what a class may say -------------------------------------------------------------------------


def test_episodes_whose_class_says_something_else_do_not_count(monkeypatch):
    healthy = outside()
    moods = ("three", "unknown", "lost", "part", "mute", "long")
    monkeypatch.setenv("MOOD", " ".join(f"{i}={mood}" for i, mood in enumerate(moods[:5])))
    with pytest.warns(verified.VerifierWarning, match=r"(?s)world crashed on 40 of 48.*expected one value, or a list"):
        rows = outside()
    failed = np.repeat(np.arange(PROMPTS) < 5, SAMPLES * SEATS)
    assert not rows.valid[failed].any() and (rows.outcome[failed] == types.Outcome.CRASHED).all()
    assert not rows.token_reward[failed].any() and not rows.reward[failed].any()
    assert (rows.finish[failed] == types.Finish.LENGTH).all() and not rows.mask[np.repeat(INDEX == 4, 8)].any()
    kept = [jax.tree.map(lambda x: x[~failed], x) for x in (healthy, rows)]
    driver.same(*kept)


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("three", r"step returned text \['', '', ''\]; expected one value, or a list of 2, one for each seat"),
        ("unknown", "step returned next_seat 2; expected a seat below 2"),
        ("true", "step returned next_seat True; expected a seat below 2"),
        ("named", "step returned next_seat 'seat 1'; expected a seat below 2"),
        ("long", "the answer to turn 0 has more than reply_length tokens"),
        ("lost", r"step returned reward \[0.0\]; expected one value, or a list of 2"),
        ("number", "'reward' is 'x' of type str"),
        ("part", r"step returned part 'heard' \[1.0\]; expected one value, or a list of 2"),
        ("judge", "outcome 'won'; allowed"),
        ("mute", r"reset returned text \['a'\]; expected one value, or a list of 2"),
        ("fewer", "step answered 1 seats; reset had another number"),
    ],
)
def test_what_a_class_may_not_say(mood, message, monkeypatch):
    monkeypatch.setenv("MOOD", " ".join(f"{i}={mood}" for i in INDEX))
    with pytest.raises(pool.VerifierError, match=r"the world crashed on 48 of 48 rows") as error:
        outside()
    assert re.search(message, "\n".join(error.value.__notes__))


def test_a_seat_that_is_told_something_before_its_turn_has_passed(tmp_path):
    """A waiting row is what the chat template writes for a conversation with an empty message of the assistant."""
    kind = public.write(tmp_path / "files", "byte level", chat_template=test_host_tokens.TOOLS)
    tokenizer = tokenizers.load(kind)
    setup = both()[1].setups[0]
    task = environments.lookup("world")("tests.support.relay:Relay", reply_length=32).bind(tokenizer)
    compiled = dataclasses.replace(both()[1].steps[0], setup=dataclasses.replace(setup, task=task))
    with producers.workers(tiny.changed(setup, verifier={"workers": 0})) as opened:
        talks = conversations.Conversations(compiled, tokenizer, opened, journals.Journal())
        talks.begin(np.array([0]), "train", "", 1, np.zeros(1, int))
        mine, other = talks._rows
        for turn, stop in (("?", True), ("9", True), ("b", False)):  # then it is the turn of seat 1
            ids = tokenizer.encode(turn + "<|to|>" * stop)
            mine.unread += ids
            talks._ended(0, ids)
            for i, reply in talks._answered(*next(iter(talks._answers(False, 0.0)))).items():
                talks._rows[i].unread += reply
    said = [{"role": "user", "content": "0bb"}]
    for content in ("10", "21", "30"):
        said += [{"role": "assistant", "content": ""}, {"role": "user", "content": content}]
    assert other.unread == tokenizer.encode(tokenizer.chat(said, True))
    said = [{"role": "user", "content": "0a"}]
    for turn, content in (("?", "3"), ("9", "7")):
        said += [{"role": "assistant", "content": turn}, {"role": "user", "content": content}]
    assert mine.unread == tokenizer.encode(tokenizer.chat(said, True) + "b")  # told nothing: it reads nothing


# --- in the training loop -------------------------------------------------------------------------


def training(**fields):
    """Return the config of 4 steps against the snapshot, which is two steps old at most, and an evaluation."""
    given = {"world__players": BOTH, "world__refresh": 2, "sampler__slots": 16, "batch__prompts": 4}
    c = tiny.config(task=f"{HOST})", **{"verifier__workers": 0, "mesh__data": 1, **given, **fields})
    c.phase.main.steps, c.phase.main.evaluate = 4, "result"
    return c


@pytest.mark.full
def test_a_run_that_is_killed_within_a_step_ends_as_if_nothing_had_been(tmp_path):
    def train(folder):
        relay.Relay.calls = 0
        return loop.train(training(), folder, progress=False, devices=jax.devices()[:1])

    whole = train(tmp_path / "whole")
    calls = sum(line["turn"] >= 0 for line in driver.recorded(tmp_path / "whole" / "turns.jsonl"))
    seats = whole.evaluations[-1]["world"]["by_seat"]  # the policy plays both
    assert {seat: record["episodes"] for seat, record in seats.items()} == {"0": 8, "1": 8}
    assert {record["valid_rows"] for record in whole.history} == {16}  # of 32, the policy's
    for back in (40, 90):
        folder = tmp_path / f"run{back}"
        driver.killed(f"{__name__}.training()", folder, calls - back)
        again = train(folder)
        jax.tree.map(np.testing.assert_array_equal, whole.state, again.state)
        assert (tmp_path / "whole/metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampler__slots": 3}, r"sampler.slots=3 .*must be a multiple of 2, the seats of an episode"),
        (
            {"sampler__slots": 4, "world__players": BOTH},
            r"slots=4 .*a multiple of 8, the rows of a prompt, which several",
        ),
        ({"seam__source": "partial(segment=5)"}, "partial.* carries rows over .*, and task .* has several seats"),
        ({"algorithm": "sft()"}, "imitates demonstrations, and task 'relay' has several seats"),
        ({"world__players": ("snapshot",)}, "expected 'policy' among them"),
        ({"task": "world('tests.support.relay:Seatless')"}, "seats is 0; expected a whole number of at least 1"),
        ({"task": "world('tests.support.relay:Bool')"}, "seats is True; expected a whole number of at least 1"),
    ],
)
def test_settings_that_do_not_fit_several_seats(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(tiny.config(**{"task": f"{HOST})", "batch__samples": 4, "verifier__workers": 0, **fields}))
