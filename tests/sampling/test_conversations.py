"""Conversations and chapters against a replay by hand, scores of their rows, and themselves cut or laid out anew."""

import dataclasses
import functools
import itertools
import types as python_types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sampling, types
from rljax.environments.worlds import reply
from rljax.models.scores import packing, scoring
from rljax.sampling import chapters, conversation, dialogue, stopping
from rljax.training.producers import play
from tests.models import test_packing as packing_tests
from tests.sampling import sampling_cases as samplers
from tests.support import worlds

from tests.sampling.replay import (  # isort: skip
    FLOATS, KEY, ONE, PAD, PAGES, SOFT, STOP, TABLE, TOY, TRANSFORMER, TWO,
    Replayed, check_conversations, episode_of, folded, sampled, setup_of, written,
)  # fmt: skip


def test_a_conversation_is_replayed_from_its_tokens():
    r = sampled(ONE)
    episodes = check_conversations(ONE, r, 6, 4)
    assert {f.number for f in episodes} == {1, 2} and set(r.finish) == {types.Finish.STOP, types.Finish.LENGTH}
    gap = [b for b in range(24) if STOP in r.action.token[b][(r.mask[b] == 0) & (r.turn[b] == 1)]]
    assert gap  # a reply holds the stop token, and the row goes on


@pytest.mark.full
@pytest.mark.parametrize("length", [None, 7])
def test_two_seats_are_replayed_from_their_tokens(length):
    world = dataclasses.replace(TWO, length=length)
    r = sampled(world, 6, 8)
    episodes = check_conversations(world, r, 6, 8)
    orders = {tuple(s for s, _ in f.turns) for f in episodes}
    if length == 7:  # rows were cut inside turns and inside replies
        full = r.action.length == length
        assert set(r.mask[full, -1]) == {0, 1} and types.Finish.LENGTH in r.finish[full]
        return
    assert {(0,), (0, 1, 0, 1, 0), (0, 1, 1, 0, 1)} <= orders  # one never wrote; one wrote twice
    silent = r.mask.sum(axis=1) == 0  # paid 1 by the fold, less 1/4 for each token of it
    assert np.any(silent) and np.all(r.token_reward[silent] == 0) and np.all(r.action.length[silent] == 0)
    np.testing.assert_array_equal(r.reward[silent], 0.75)
    used = np.arange(23)[None, :] < r.action.length[:, None]
    assert np.all(r.mask <= used)
    written = np.sum(r.mask > 0)
    for name in FLOATS:
        assert np.all(getattr(r, name)[r.mask == 0] == 0) and np.sum(getattr(r, name) != 0) <= written


# --- scores of recorded rows ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "shared", "options"),
    [
        (ONE, False, {"top_p": 0.8, "temperature": 0.7, "rescore": "kept"}),
        pytest.param(ONE, True, {"top_p": 0.8, "temperature": 0.7, "rescore": "kept"}, marks=pytest.mark.full),
        pytest.param(TWO, False, {"top_k": 9, "rescore": "kept", "cache_block": 2}, marks=pytest.mark.full),
        pytest.param(PAGES, False, {"top_p": 0.8, "rescore": "kept"}, marks=pytest.mark.full),
    ],
    ids=["one", "shared", "two", "pages"],
)
def test_scoring_a_recorded_row_gives_the_log_probs_of_the_sampler(world, shared, options):
    r = sampled(world, 4, 6, model=TRANSFORMER, **options)
    mine, kept = r.mask > 0, "rescore" in options
    assert (r.action.kept is not None) == kept and mine.sum() > 60
    score = functools.partial(
        scoring.score, TRANSFORMER, needs=types.Needs(entropy=True), temperature=options.get("temperature", 1.0)
    )
    ways = [{}]
    if shared:  # each prompt once; and its completions packed side by side
        real = np.asarray(packing.written(jnp.asarray(r.mask))).sum(axis=1)
        ways = [{"samples": 6}, {"samples": 6, "places": packing_tests.places_of(real.reshape(4, 6), 14)}]
    for way in ways:
        scores = jax.jit(functools.partial(score, kept=kept, **way))(samplers.parameters(), rollout=r)
        np.testing.assert_allclose(scores.logp[mine], r.behaviour_logp[mine], atol=1e-5)
        raw = scores.raw_logp if kept else scores.logp
        np.testing.assert_allclose(raw[mine], r.raw_logp[mine], atol=1e-5)
        np.testing.assert_allclose(scores.entropy[mine], r.entropy[mine], atol=1e-5)
    if kept:
        assert np.abs(r.behaviour_logp - r.raw_logp).max() > 0.05
        assert np.all(r.action.kept[~mine] == sampling.EVERY_TOKEN)  # replies and padding


# --- cuts and layouts -----------------------------------------------------------------------------


STRINGS = stopping.build(("21",), [None, b"1", b"2"], 3)  # of tokens 2 and 1; a turn of two tokens holds at most one


@functools.cache
def pieces(segment, compact, strings):
    """Return (whole, first, continue): converse, and resume, as compiled functions of (prompts, keys, states, ...)."""
    ends = sampling.Ends((STOP,), PAD, strings)
    config = sampling.SamplerConfig(cache_block=0 if segment else 3, compact=compact, top_k=2, rescore="kept")
    table = jnp.asarray(SOFT, jnp.float32)
    if not segment:
        return jax.jit(lambda p, k, s: conversation.converse(TOY, table, LONG, s, p, k, config, ends, length=LENGTH))

    def run(prompts, keys, talk, sample, fresh):
        return conversation.resume(TOY, table, LONG, talk, prompts, keys, sample, fresh, config, ends, segment=segment)

    return jax.jit(run)


@dataclasses.dataclass(frozen=True)
class _Long(worlds.TwoTurns):
    """Three turns, the later two like the second of two; the second is the last after a coin of 1."""

    max_turns = 3

    def step(self, state, seat, token, mask, key):
        following, reply = super().step({**state, "turn": jnp.minimum(state["turn"], 1)}, seat, token, mask, key)
        done = (state["turn"] > 0) & (reply.done | (following["coin"] == 1))
        return {**following, "turn": state["turn"] + 1}, reply.replace(done=done, truncated=jnp.zeros((), bool))


LENGTH = 9
LONG = _Long(length=LENGTH)


@functools.cache
def begun():
    states = play.begin(LONG, jnp.arange(5), "train", jnp.int32(0), KEY, 8)
    return play.views(LONG, states, 8), samplers.keys_for(5, 8), states


@functools.cache
def whole(strings=None):
    return jax.device_get(pieces(0, 0, strings)(*begun()))


@pytest.mark.full
@pytest.mark.parametrize(
    ("segment", "compact", "strings"),
    [(n, 0, n == 2) for n in range(1, LENGTH + 1)] + [(1, 0, True), (3, 1, False)],
)
def test_a_conversation_cut_anywhere_is_the_conversation_uncut(segment, compact, strings):
    prompts, keys, states = begun()
    strings = STRINGS if strings else None
    sample, talk = whole(strings)
    run, cuts = pieces(segment, compact, strings), set()
    now = jax.tree.map(lambda x: jnp.full_like(x, 1), sample)  # what stands in fresh rows must not matter
    resumed = dialogue.begin(LONG, states, sampling.Ends((STOP,), PAD, strings))
    for number in range(-(-LENGTH // segment)):
        before = 0 if number == 0 else now.length
        now, resumed = jax.device_get(run(prompts, keys, resumed, now, jnp.full((40,), number == 0)))
        assert (now.length - before).max() <= segment
        going = now.finish == types.Finish.UNFINISHED
        cuts |= {"turn"} if np.any(going & (resumed.count > 0)) else set()
        cuts |= {"reply"} if np.any(going & (resumed.place > 0) & (resumed.place < resumed.size)) else set()
    assert segment > 2 or cuts == {"turn", "reply"}
    for name in ("token", "mask", "turn", "finish", "length", "kept", *FLOATS):
        np.testing.assert_array_equal(getattr(now, name), getattr(sample, name), name)
    for name in ("paid", "outcome", "valid", "done", "over", "parts", "extra", "world", "turn", "ended"):
        jax.tree.map(np.testing.assert_array_equal, getattr(resumed, name), getattr(talk, name))
    pairs = ((now, resumed.paid), (sample, talk.paid))
    reward = [dialogue.on_last_tokens(*jax.tree.map(jnp.asarray, pair)) for pair in pairs]
    np.testing.assert_array_equal(*reward)


@pytest.mark.full
def test_a_batch_that_shrinks_changes_nothing():
    sample, talk = whole(STRINGS)
    compacted, resumed = jax.device_get(pieces(0, 1, STRINGS)(*begun()))
    assert compacted.slots < sample.slots and len(set(sample.length.tolist())) > 2
    same = dataclasses.replace(compacted, slots=sample.slots)
    jax.tree.map(np.testing.assert_array_equal, same, sample)
    unread = {name: getattr(talk, name) for name in ("told", "written", "strings")}
    jax.tree.map(np.testing.assert_array_equal, dataclasses.replace(resumed, **unread), talk)


@pytest.mark.full
def test_stop_strings_end_a_turn_and_begin_anew_with_the_next():
    sample, talk = whole(STRINGS)
    matched = across = 0
    for b in range(40):
        turns = written(sample.token[b], sample.mask[b], sample.turn[b])
        full = sample.length[b] == LENGTH
        for k, turn in enumerate(turns):
            assert turn[-1] == STOP or turn[-2:] == [2, 1] or len(turn) == 2 or (full and k == len(turns) - 1)
            matched += turn == [2, 1]
        places = np.flatnonzero(sample.mask[b] > 0)
        for t, u in itertools.pairwise(places):  # the end of one turn, the reply, the beginning of the next
            string = sample.token[b, t : u + 1]
            across += sample.turn[b, t] != sample.turn[b, u] and list(string[-2:]) == [2, 1] and places[-1] > u
            if list(string[-2:]) == [2, 1] and sample.turn[b, t] != sample.turn[b, u] and places[-1] > u:
                assert sample.turn[b, u + 1] == sample.turn[b, u]  # the turn went on
    assert matched > 5 and across > 2
    # the world reads end-of-sequence in place of the string: turn (2, 1) holds no 1 that is paid
    first = [b for b in range(40) if written(sample.token[b], sample.mask[b], sample.turn[b])[0] == [2, 1]]
    assert first and np.all(talk.paid[first, 0] == 0)


# --- seats ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_another_card_of_the_other_seat_changes_nothing_before_it_is_shown():
    one, two = (sampled(dataclasses.replace(TWO, more=more), 6, 8) for more in (0, 1))
    seen = changed = 0
    for e in range(48):
        b, (_, key) = 2 * e, episode_of(TWO, e // 8, e % 8)
        again = jax.random.bits(folded(key, 2**30, 1), (2,))[1] % 2 == 1  # seat 1 wrote turns 1 and 2
        first, second = (np.flatnonzero((one.mask[b] > 0) & (one.turn[b] == k)) for k in (0, 1))
        hidden = first[-1] + 2 if again or not len(second) else second[-1] + 1  # a die is told after turn 1
        for x, y in ((getattr(r, name)[b, :hidden] for r in (one, two)) for name in ("mask", "turn", *FLOATS)):
            np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(one.action.token[b, :hidden], two.action.token[b, :hidden])
        seen += len(second) > 0 and not again
        changed += np.any(one.action.token[b] != two.action.token[b])
    writes = one.mask[1::2].sum(axis=1) > 0
    assert seen > 5 and changed > 5  # two blind turns were compared; and the cards matter in the end
    assert np.any((one.action.token != two.action.token)[1::2][writes])


# --- chapters -------------------------------------------------------------------------------------


@pytest.mark.default_tier("two")
@pytest.mark.parametrize("world", [PAGES, dataclasses.replace(TWO, rows="chapters")], ids=["one", "two"])
def test_a_chapter_is_a_completion_of_its_prompt(world):
    r, turns, width = sampled(world, 6, 8), world.max_turns, world.turn_length
    assert r.mask.shape == (48 * turns, width)
    np.testing.assert_array_equal(r.episode, np.repeat(np.arange(48), turns))
    np.testing.assert_array_equal(r.group, np.repeat(np.arange(6), 8 * turns))
    np.testing.assert_array_equal(r.turn, np.tile(np.arange(turns), 48)[:, None] + np.zeros((1, width), int))
    present, keys, numbers = r.valid > 0, [], set()
    np.testing.assert_array_equal(present, r.mask.any(axis=1))
    for e in range(48):
        state, key = episode_of(world, e // 8, e % 8)
        keys += [folded(key, 2**29 + k) for k in range(turns)]
        rows = range(e * turns, (e + 1) * turns)
        pages = [[int(t) for t in r.action.token[b][r.mask[b] > 0]] for b in rows if present[b]]
        seats = [int(r.agent[b]) for b in rows if present[b]]
        mine = [[page for page, s in zip(pages, seats, strict=True) if s == seat] for seat in range(world.seats)]
        want = Replayed(world, mine, state, key, 99)
        assert want.turns == list(zip(seats, pages, strict=True))
        assert [*present[rows]] == [k < want.number for k in range(turns)]
        numbers.add(want.number)
        for s, row in enumerate(want.rows):
            mine = [b for b in rows if present[b] and r.agent[b] == s]
            wrote = r.mask[mine] > 0
            paid = [row["reward"].get(t, 0.0) for t in range(wrote.sum())]
            np.testing.assert_allclose(r.token_reward[mine][wrote], paid)
            np.testing.assert_allclose(r.reward[mine], want.unearned[s])  # every row of a seat repeats it
            for b in mine:
                assert r.outcome[b] == want.reply.outcome[s] and r.domain[b] == want.reply.domain
                assert r.parts[world.parts[0]][b] == want.reply.parts[world.parts[0]][s]
                assert r.finish[b] == (types.Finish.STOP if want.done else types.Finish.LENGTH)
            np.testing.assert_allclose(r.extra[world.extra[0]][mine][wrote], row["extra"])
        for b, (prompt, mask) in zip(rows, want.prompts, strict=False):
            np.testing.assert_array_equal(r.context.token[b], prompt)
            np.testing.assert_array_equal(r.context.mask[b], mask)
    assert numbers == ({1, 2} if world is PAGES else {1, 4, 5}) and r.mask[~present].sum() == 0
    for name in ("token_reward", *FLOATS):
        assert np.all(getattr(r, name)[r.mask == 0] == 0)
    prompts = types.Prompts(token=r.context.token, mask=r.context.mask, index=r.index)
    plain = samplers.draw(TABLE, prompts, jnp.stack(keys), samplers.OFF, length=width, pad=PAD)
    for name in ("mask", *FLOATS):
        np.testing.assert_array_equal(getattr(r, name)[present], getattr(plain, name)[present])
    np.testing.assert_array_equal(r.action.token[present], plain.token[present])


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_samples_of_a_prompt_have_its_problem_and_rows_do_not_depend_on_their_place():
    r, moved = sampled(ONE), sampled(ONE, [4, 1])
    same = (r.context.token == np.repeat(r.context.token[::4], 4, axis=0)).all()
    assert same and len(np.unique(r.context.token, axis=0)) == 2 and len(np.unique(r.action.token[:4], axis=0)) > 1
    for place, problem in enumerate((4, 1)):
        here, there = slice(4 * place, 4 * place + 4), slice(4 * problem, 4 * problem + 4)
        for name in ("mask", "turn", "token_reward", *FLOATS):
            np.testing.assert_array_equal(getattr(moved, name)[here], getattr(r, name)[there])
        np.testing.assert_array_equal(moved.action.token[here], r.action.token[there])
    later, other = sampled(ONE, step=4), sampled(ONE, key=jax.random.key(12))
    assert np.any(later.action.token != r.action.token) and np.any(other.action.token != r.action.token)
    new = sampled(dataclasses.replace(ONE, anew=True))
    assert any(len(np.unique(new.context.token[4 * p : 4 * p + 4], axis=0)) == 2 for p in range(6))


@pytest.mark.full
def test_problems_of_each_sample_are_replayed_too():
    world = dataclasses.replace(ONE, anew=True)
    check_conversations(world, sampled(world), 6, 4)


@pytest.mark.full
@pytest.mark.parametrize("world", [TWO, PAGES], ids=["two", "pages"])
def test_a_vmapped_rollout_is_that_of_each_member(world):
    setup, index = setup_of(world, 4), jnp.arange(3)
    tables = jnp.stack([jnp.asarray(t, jnp.float32) for t in (TABLE, TABLE[::-1].copy())])
    keys = sampling.row_keys(KEY, 0, jnp.repeat(index, 4), jnp.tile(jnp.arange(4), 3))
    states = play.begin(world, index, "train", jnp.int32(0), KEY, 4)
    config, ends = setup.settings.sampler, setup.ends

    def run(table):
        if world.rows == "chapters":
            book = chapters.write((TOY,), (table,), np.zeros((12, 1), int), world, states, keys, config, ends)
            return book.sample.token, book.sample.behaviour_logp, book.talk.paid
        prompts = play.views(world, states, 4)
        length = world.completion_length
        out = conversation.converse(TOY, table, world, states, prompts, keys, config, ends, length=length)
        return out[0].token, out[0].behaviour_logp, out[1].paid

    swept = jax.jit(jax.vmap(run))(tables)
    for member, table in enumerate(tables):
        for x, y in zip(swept, jax.jit(run)(table), strict=True):
            np.testing.assert_array_equal(x[member], y)


FAULTY = python_types.SimpleNamespace(  # two seats; the state is the reply to every turn
    **{"seats": 2, "max_turns": 4, "turn_length": 2, "reply_length": 1, "parts": ("p",), "extra": ("e",)},
    step=lambda state, seat, token, mask, key: (state, state),
)


@jax.jit
def _begun(states):
    return dialogue.begin(FAULTY, states, sampling.Ends((STOP,), PAD))


@jax.jit
def _answered(talk):
    keys = jax.random.split(jax.random.key(0), 6)
    return dialogue.answer(FAULTY, sampling.Ends((STOP,), PAD), talk, keys, jnp.ones(3, bool))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("reward", jnp.nan), ("reward", -jnp.inf), ("parts", jnp.nan), ("extra", 2e15), ("valid", jnp.nan)),
        *(("outcome", 6), ("outcome", -1), ("next_seat", 2), ("next_seat", -1)),
    ],
)
def test_a_reply_with_a_value_that_is_not_allowed_ends_its_episode_alone(field, value):
    seats, good = jnp.ones((3, 2)), {"parts": "p", "extra": "e"}
    told = reply.Reply(
        *(jnp.zeros((3, 2, 1), jnp.int32), jnp.zeros((3, 2, 1)), seats, jnp.ones((3, 2), jnp.int32), jnp.ones(3)),
        done=jnp.zeros(3, bool),
        truncated=jnp.zeros(3, bool),
        next_seat=jnp.ones(3, jnp.int32),
        parts={"p": seats},
        extra={"e": jnp.ones(3)},
        domain=jnp.zeros(3, jnp.int32),
    )
    of = getattr(told, field)
    wrong = {good[field]: of[good[field]].at[1].set(value)} if field in good else of.at[1].set(value)
    pair = []
    for states in (told, told.replace(**{field: wrong})):
        talk = dataclasses.replace(_begun(states), count=jnp.ones(3, jnp.int32))
        pair.append(_answered(talk))
    sound, failed = (jax.tree.map(np.asarray, dataclasses.replace(talk, world=())) for talk in pair)
    assert failed.over.tolist() == [False, True, False] and failed.valid.tolist() == [1, 0, 1]
    assert failed.outcome.reshape(3, 2).tolist() == [[1, 1], [int(types.Outcome.CRASHED)] * 2, [1, 1]]
    assert not failed.paid[2:4].any() and not failed.unearned[2:4].any() and not failed.parts["p"][2:4].any()
    for one, other in zip(jax.tree.leaves(sound), jax.tree.leaves(failed), strict=True):
        rows = np.repeat([True, False, True], one.shape[0] // 3)
        np.testing.assert_array_equal(one[rows], other[rows])
    over = dataclasses.replace(told, done=jnp.ones(3, bool), next_seat=jnp.full(3, 2, jnp.int32))  # nobody is next
    assert _answered(_begun(over)).valid.all()
