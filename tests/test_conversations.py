"""Conversations and chapters against enumeration, a replay by hand, and themselves cut or laid out anew.

The worlds are those of ``tests.worlds``; the policy is the table of ``test_sampling``, with an oracle in NumPy.
"""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, sampling, types
from rljax.algorithms import interpreter
from rljax.models import packing, scoring
from rljax.sampling import chapters, conversation, stopping
from rljax.training import play, rollouts
from rljax.transforms import advantage, ratio, reduce, surrogate
from tests import test_packing as packing_tests
from tests import test_sampling as samplers
from tests import tiny, worlds

TABLE, TOY, TRANSFORMER = samplers.TABLE, samplers.TOY, samplers.TRANSFORMER
STOP, PAD, KEY = worlds.STOP, worlds.PAD, jax.random.key(11)
ONE, TWO = worlds.TwoTurns(), worlds.Cards()
PAGES = worlds.TwoTurns("chapters")
FOLD = jax.jit(jax.random.fold_in)
FLOATS = ("behaviour_logp", "raw_logp", "entropy", "square_prob")


def setup_of(world, samples, model=TOY, strings=None, segment=0, **sampler):
    """Return the setup of a phase whose task is the world."""
    setup = tiny.program("reinforce()").steps[-1].setup
    setup = tiny.changed(setup, batch={"samples": samples}, sampler={"cache_block": 0, **sampler})
    return dataclasses.replace(setup, task=world, decoder=model, ends=sampling.Ends((STOP,), PAD, strings))


@functools.cache
def compiled(world, samples, **options):
    setup = setup_of(world, samples, **options)

    def run(params, index, step, key):
        return play.episodes(setup, {"policy": params}, ("policy",), step, index, index, "train", key)

    return jax.jit(run)


def sampled(world, problems=6, samples=4, *, table=TABLE, step=3, key=KEY, **options):
    """Return the rollout of problems 0, 1, ..., or of an array of problems."""
    index = jnp.arange(problems) if isinstance(problems, int) else jnp.asarray(problems)
    params = samplers.parameters() if options.get("model") is TRANSFORMER else jnp.asarray(table, jnp.float32)
    return jax.device_get(compiled(world, samples, **options)(params, index, jnp.int32(step), key))


# --- replay, from the contract ------------------------------------------------------------------------


@functools.cache
def jitted(world):
    """Return begin, prompt and step, for one episode."""
    return jax.jit(lambda index, key: world.begin(index, "train", key)), jax.jit(world.prompt), jax.jit(world.step)


def folded(key, *numbers):
    return functools.reduce(FOLD, numbers, key)


def episode_of(world, problem, sample, step=3, key=KEY):
    """Return the world's state at the beginning, and the key of the episode."""
    problem_key = folded(key, 4, step, problem, sample if world.anew else 0)
    return jitted(world)[0](problem, problem_key), folded(key, 0, step, problem, sample)


class Replayed:
    """What the rows of an episode must hold, from the tokens that its seats wrote."""

    def __init__(self, world, rows, state, key, length):
        """``rows``: for each seat, the turns that it wrote, in order."""
        self.rows = [{"token": [], "mask": [], "turn": [], "extra": [], "reward": {}} for _ in range(world.seats)]
        self.unearned, self.seat, self.number = [0.0] * world.seats, 0, 0
        self.valid, self.done, self.turns, self.prompts = 1.0, False, [], []
        mine = [iter(turns) for turns in rows]
        ended, over = [0] * world.seats, False
        while not over:
            seat, row = self.seat, self.rows[self.seat]
            turn = next(mine[seat])[: length - len(row["token"])]
            self.turns.append((seat, turn))
            self.prompts.append(jitted(world)[1](state, seat))
            padded = np.array(turn + [PAD] * (world.turn_length - len(turn)), np.int32)
            mask = (np.arange(world.turn_length) < len(turn)).astype(np.float32)
            state, reply = jitted(world)[2](state, seat, padded, mask, folded(key, 2**30, self.number))
            self.reply = reply = jax.device_get(reply)
            row["token"] += turn
            row["mask"] += [1] * len(turn)
            row["turn"] += [ended[seat]] * len(turn)
            row["extra"] += [float(x) for x in reply.extra.values()] * len(turn)
            row["last"] = len(row["token"]) - 1
            ended[seat] += 1
            for s in range(world.seats):
                if "last" in self.rows[s]:
                    paid = self.rows[s]["reward"]
                    paid[self.rows[s]["last"]] = paid.get(self.rows[s]["last"], 0.0) + float(reply.reward[s])
                else:
                    self.unearned[s] += float(reply.reward[s])
            self.number, self.valid = self.number + 1, self.valid * float(reply.valid)
            self.done = bool(reply.done & ~reply.truncated)
            over = bool(reply.done | reply.truncated) or self.number == world.max_turns or len(row["token"]) == length
            if over or world.rows == "chapters":
                self.seat = int(reply.next_seat)
                continue
            told = [[t for t, m in zip(reply.token[s], reply.mask[s], strict=True) if m] for s in range(world.seats)]
            for column in itertools.zip_longest(*told):
                for s, token in enumerate(column):
                    if token is not None:
                        for name, x in (("token", int(token)), ("mask", 0), ("turn", ended[s]), ("extra", 0.0)):
                            self.rows[s][name].append(x)
                if over := any(len(r["token"]) == length for r in self.rows):
                    break
            self.seat = int(reply.next_seat)


def written(token, mask, turn):
    """Return the turns that a row's seat wrote, as lists of tokens."""
    turns = {}
    for t, m, k in zip(token, mask, turn, strict=True):
        if m:
            turns.setdefault(int(k), []).append(int(t))
    return [turns[k] for k in sorted(turns)]


def right(values, length, fill):
    return np.array(list(values) + [fill] * (length - len(values)))


def check_conversations(world, r, problems, samples, step=3, key=KEY):
    """Compare each row with the replay of its episode; return the replays."""
    length, seats, found = world.completion_length, world.seats, []
    for e in range(len(r.reward) // seats):
        rows, problem = slice(e * seats, (e + 1) * seats), e // samples
        turns = [written(*x) for x in zip(r.action.token[rows], r.mask[rows], r.turn[rows], strict=True)]
        state, episode = episode_of(world, problem, e % samples, step, key)
        want = Replayed(world, turns, state, episode, length)
        found.append(want)
        for s, row in enumerate(want.rows):
            b, count = e * seats + s, len(row["token"])
            assert r.action.length[b] == count and r.agent[b] == s and r.episode[b] == e and r.group[b] == problem
            np.testing.assert_array_equal(r.action.token[b], right(row["token"], length, PAD))
            np.testing.assert_array_equal(r.mask[b], right(row["mask"], length, 0))
            np.testing.assert_array_equal(r.turn[b, :count], row["turn"])
            np.testing.assert_allclose(r.extra[world.extra[0]][b], right(row["extra"], length, 0))
            paid = [row["reward"].get(t, 0.0) for t in range(length)]
            np.testing.assert_allclose(r.token_reward[b], paid, atol=1e-6)
            assert np.isclose(r.reward[b], want.unearned[s])
            assert r.outcome[b] == want.reply.outcome[s] and r.valid[b] == want.valid
            assert r.parts[world.parts[0]][b] == want.reply.parts[world.parts[0]][s]
            assert r.domain[b] == want.reply.domain
            assert r.finish[b] == (types.Finish.STOP if want.done else types.Finish.LENGTH)
            seen, view = jitted(world)[1](state, s)
            np.testing.assert_array_equal(r.context.token[b], seen)
            np.testing.assert_array_equal(r.context.mask[b], view)
        assert all(next(iter(rest), None) is None for rest in [turns[s][want_count(want, s) :] for s in range(seats)])
    return found


def want_count(replay, seat):
    return sum(s == seat for s, _ in replay.turns)


def test_a_conversation_is_replayed_from_its_tokens():
    r = sampled(ONE)
    found = check_conversations(ONE, r, 6, 4)
    assert {f.number for f in found} == {1, 2} and set(r.finish) == {types.Finish.STOP, types.Finish.LENGTH}
    gap = [b for b in range(24) if STOP in r.action.token[b][(r.mask[b] == 0) & (r.turn[b] == 1)]]
    assert gap  # a reply holds the stop token, and the row goes on


@pytest.mark.parametrize("length", [23, pytest.param(7, marks=pytest.mark.full)])
def test_two_seats_are_replayed_from_their_tokens(length):
    world = dataclasses.replace(TWO, length=length)
    r = sampled(world, 6, 8)
    found = check_conversations(world, r, 6, 8)
    orders = {tuple(s for s, _ in f.turns) for f in found}
    if length == 7:  # rows were cut inside turns and inside replies
        full = r.action.length == length
        assert set(r.mask[full, -1]) == {0, 1} and types.Finish.LENGTH in r.finish[full]
        return
    assert {(0,), (0, 1, 0, 1, 0), (0, 1, 1, 0, 1)} <= orders  # one never wrote; one wrote twice
    silent = r.mask.sum(axis=1) == 0  # paid 1 by the fold, less 1/4 for each token of it
    assert np.any(silent) and np.all(r.token_reward[silent] == 0) and np.all(r.action.length[silent] == 0)
    np.testing.assert_array_equal(r.reward[silent], 0.75)
    used = np.arange(length)[None, :] < r.action.length[:, None]
    assert np.all(r.mask <= used)
    written = np.sum(r.mask > 0)
    for name in FLOATS:
        assert np.all(getattr(r, name)[r.mask == 0] == 0) and np.sum(getattr(r, name) != 0) <= written


# --- enumeration ----------------------------------------------------------------------------------------

SOFT = 0.5 * TABLE  # no conversation is rarer than 1e-3
DRAWS = 8192
TURNS = [(0,), *itertools.product((1, 2), range(3))]
RECIPES = {
    "reinforce": algorithms.TABLE["reinforce"](),
    "clipped": algorithms.base.compose(
        advantage=[advantage.returns()],
        loss=[ratio.token(), surrogate.clip(0.2, 0.2)],
        reduce=reduce.mean_over_rows_of_sums(),
    ),
}


def every(luck):
    """Return (turns, coin, pay of each turn) of all conversations; the coin is None where it does not matter."""
    found = []
    for first in TURNS:
        pay = first.count(1) / 4
        if first in ((0,), (2, 2)):
            found.append(((first,), None, (pay,)))
            continue
        for coin, second in itertools.product((0, 1), TURNS):
            hit = second[0] == (luck + coin) % 3
            found.append(((first, second), coin, (pay, second.count(1) / 4 + hit - 0.5 * (0 not in second))))
    return found


def contexts(rows, luck, turns, coin):
    """Return what the seat has read before each turn."""
    before = (luck,)
    yield before
    if len(turns) == 2:
        first = turns[0]
        reply = (2, *(0,) * coin, (first[0] + coin) % 3)
        yield before + first + reply if rows == "conversation" else (first[0], 1 + coin, luck)


def log_softmax(x):
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def logp_of(rows, luck, table, turns, coin):
    """Return the log-prob of each token, turn by turn."""
    logp = log_softmax(table)
    return [
        [logp[sum(v + 1 for v in before + turn[:i]) % 5, turn[i]] for i in range(len(turn))]
        for before, turn in zip(contexts(rows, luck, turns, coin), turns, strict=False)
    ]


def probability(rows, luck, table):
    """Return the probability of each conversation of ``every``: the world's coin is fair."""
    each = [math.exp(sum(map(sum, logp_of(rows, luck, table, t, c)))) for t, c, _ in every(luck)]
    return np.array(each) * [0.5 if coin is not None else 1.0 for _, coin, _ in every(luck)]


@functools.cache
def enumerated(rows):
    """Return (luck, rollout, {conversation: [rows]}, counts) of one problem, sampled many times."""
    world = dataclasses.replace(ONE, rows=rows)
    r, each = sampled(world, 1, DRAWS, table=SOFT), world.max_turns if rows == "chapters" else 1
    luck, first, count = int(episode_of(world, 0, 0)[0]["luck"]), {}, {}
    for e in range(DRAWS):
        if each == 1:
            turns = tuple(map(tuple, written(r.action.token[e], r.mask[e], r.turn[e])))
        else:
            pages = [r.action.token[b][r.mask[b] > 0] for b in (2 * e, 2 * e + 1)]
            turns = tuple(tuple(int(t) for t in page) for page in pages if len(page))
        coin = int(r.extra["coin"][e * each, 0]) if len(turns) == 2 else None
        first.setdefault((turns, coin), [e * each + k for k in range(each)])
        count[turns, coin] = count.get((turns, coin), 0) + 1
    return luck, r, first, count


@pytest.mark.parametrize("rows", ["conversation", "chapters"])
def test_every_conversation_has_its_exact_frequency_and_record(rows):
    luck, r, first, count = enumerated(rows)
    prob = probability(rows, luck, SOFT)
    assert len(prob) == 72 and abs(prob.sum() - 1) < 1e-12 and prob.min() > 1e-3
    assert set(first) == {(turns, coin) for turns, coin, _ in every(luck)}
    observed = np.array([count[turns, coin] for turns, coin, _ in every(luck)])
    square = np.sum((observed - DRAWS * prob) ** 2 / (DRAWS * prob))
    assert square < 71 + 6 * math.sqrt(2 * 71)  # mean f and variance 2f: six standard deviations
    for turns, coin, pay in every(luck):
        b = first[turns, coin]
        own = r.mask[b] > 0
        logp = logp_of(rows, luck, SOFT, turns, coin)
        np.testing.assert_allclose(r.behaviour_logp[b][own], [*itertools.chain(*logp)], atol=1e-5)
        np.testing.assert_allclose(r.raw_logp[b][own], [*itertools.chain(*logp)], atol=1e-5)
        if rows == "conversation":
            paid = [p for turn, p in zip(turns, pay, strict=True) for p in (*(0.0,) * (len(turn) - 1), p)]
            np.testing.assert_allclose(r.token_reward[b][own], paid)
        else:
            np.testing.assert_array_equal(r.valid[b], [1, len(turns) - 1])
            np.testing.assert_allclose(r.token_reward[b].sum(axis=1), [*pay, 0.0][:2])
        assert np.all(r.token_reward[b][~own] == 0) and np.all(r.reward[b] == 0)


def expected_ascent(recipe, luck, r, first, table):
    """Return the expected direction of ascent in the table, [5, 3], of one row of the batch for each conversation."""
    cases = every(luck)
    order = np.concatenate([first[turns, coin] for turns, coin, _ in cases])
    each = order.size // len(cases)
    batch = jax.tree.map(lambda x: jnp.asarray(x[order]), r.replace(action=None))
    weight = np.repeat(probability("conversation" if each == 1 else "chapters", luck, table), each)
    if each > 1:  # a turn follows what the whole episode is paid
        total = np.array([sum(pay) for _, _, pay in cases])
        batch = batch.replace(reward=jnp.asarray(np.repeat(total, each), jnp.float32), token_reward=None)
    batch = batch.replace(group=jnp.arange(order.size), episode=jnp.arange(order.size) // each)

    @jax.jit
    def slope(batch):
        rows, state = interpreter.transform(recipe, batch, interpreter.init(recipe), KEY)
        (objective,) = recipe.objectives
        inner = state["objectives"][0]
        rows, inner = interpreter.prepare_minibatch(objective, rows, None, inner, KEY)

        def loss(logp):
            return interpreter.loss(objective, rows, types.Scores(logp=logp), inner, KEY)[0]

        return jax.grad(loss)(batch.behaviour_logp)

    trained = np.sum(np.sum(r.mask[order] * r.valid[order][:, None], axis=1) > 0)
    gradient = -np.asarray(slope(batch), np.float64) * weight[:, None] * trained
    assert np.all(gradient[r.mask[order] == 0] == 0)  # replies and padding, exactly
    prompt, token = r.context.token[order], r.action.token[order]
    used = np.arange(token.shape[1])[None, :] < r.action.length[order][:, None]
    real = np.concatenate([r.context.mask[order] > 0, used], axis=1)
    state = np.cumsum((np.concatenate([prompt, token], axis=1) + 1) * real, axis=1)[:, prompt.shape[1] - 1 : -1] % 5
    own = r.mask[order] > 0
    out, pi = np.zeros((5, 3)), np.exp(log_softmax(table))
    np.add.at(out, (state[own], token[own]), gradient[own])
    np.add.at(out, state[own], -gradient[own][:, None] * pi[state[own]])
    return out


@pytest.mark.parametrize("rows", ["conversation", "chapters"])
def test_the_expected_gradient_over_all_conversations_is_the_true_one(rows):
    luck, r, first, _ = enumerated(rows)
    reward = np.array([sum(pay) for _, _, pay in every(luck)])

    def value(table):
        return probability(rows, luck, table) @ reward

    steps = 1e-5 * np.eye(15).reshape(15, 5, 3)
    truth = np.array([(value(SOFT + h) - value(SOFT - h)) / 2e-5 for h in steps]).reshape(5, 3)
    assert np.abs(truth).max() > 0.05
    for recipe in RECIPES.values():
        np.testing.assert_allclose(expected_ascent(recipe, luck, r, first, SOFT), truth, atol=1e-5)


def test_replies_have_no_gradient_and_no_value_of_theirs_is_read():
    r = sampled(ONE)
    reply = (r.mask == 0) & (np.arange(7)[None, :] < r.action.length[:, None])
    assert reply.sum() > 20
    recipes = {name: algorithms.TABLE[name]() for name in ("reinforce", "grpo", "rollout_is", "turn_ppo")}
    poison = np.where(r.mask > 0, 0, np.nan).astype(np.float32)
    fields = (*FLOATS, "value", "ref_logp", "proximal_logp")
    r = r.replace(value=r.mask * 0.1, ref_logp=r.behaviour_logp * 0.9, proximal_logp=r.behaviour_logp)
    poisoned = r.replace(**{name: getattr(r, name) + poison for name in fields})

    @jax.jit
    def run(r, logits):
        def loss(logits, recipe):
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), r.action.token[:, :, None], axis=2)[:, :, 0]
            rows, state = interpreter.transform(recipe, r, interpreter.init(recipe), KEY)
            inner = state["objectives"][0]
            scores = types.Scores(logp=logp, value=logp, entropy=logp)
            rows, inner = interpreter.prepare_minibatch(recipe.objectives[0], rows, scores, inner, KEY)
            return interpreter.loss(recipe.objectives[0], rows, scores, inner, KEY)[0]

        return {name: jax.value_and_grad(loss)(logits, recipe) for name, recipe in recipes.items()}

    logits = np.random.default_rng(0).normal(size=(*r.mask.shape, 4)).astype(np.float32)
    plain = jax.device_get(run(r, logits))
    spoilt = jax.device_get(run(poisoned, np.where(reply[:, :, None], np.float32(np.nan), logits)))
    for name, (loss, gradient) in plain.items():
        assert np.all(gradient[r.mask == 0] == 0) and np.any(gradient[r.mask > 0] != 0), name
        assert loss == spoilt[name][0], name
        np.testing.assert_array_equal(gradient[r.mask > 0], spoilt[name][1][r.mask > 0])


# --- scores of recorded rows ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "shared", "options"),
    [
        (ONE, False, {"top_p": 0.8, "temperature": 0.7, "rescore": "kept"}),
        pytest.param(ONE, True, {"top_p": 0.8, "temperature": 0.7, "rescore": "kept"}, marks=pytest.mark.full),
        pytest.param(TWO, False, {"top_k": 9, "rescore": "kept", "cache_block": 2}, marks=pytest.mark.full),
        pytest.param(PAGES, False, {"top_p": 0.8}, marks=pytest.mark.full),
    ],
    ids=["one", "shared", "two", "pages"],
)
def test_scoring_a_recorded_row_gives_the_log_probs_of_the_sampler(world, shared, options):
    r = sampled(world, 4, 6, model=TRANSFORMER, **options)
    own, kept = r.mask > 0, "rescore" in options
    assert (r.action.kept is not None) == kept and own.sum() > 60
    score = functools.partial(
        scoring.score, TRANSFORMER, needs=types.Needs(entropy=True), temperature=options.get("temperature", 1.0)
    )
    ways = [{}]
    if shared:  # each prompt once; and its completions packed side by side
        real = np.asarray(packing.written(jnp.asarray(r.mask))).sum(axis=1)
        ways = [{"samples": 6}, {"samples": 6, "places": packing_tests.places_of(real.reshape(4, 6), 14)}]
    for way in ways:
        scores = jax.jit(functools.partial(score, kept=kept, **way))(samplers.parameters(), rollout=r)
        np.testing.assert_allclose(scores.logp[own], r.behaviour_logp[own], atol=1e-5)
        raw = scores.raw_logp if kept else scores.logp
        np.testing.assert_allclose(raw[own], r.raw_logp[own], atol=1e-5)
        np.testing.assert_allclose(scores.entropy[own], r.entropy[own], atol=1e-5)
    if kept:
        assert np.abs(r.behaviour_logp - r.raw_logp).max() > 0.05
        assert np.all(r.action.kept[~own] == sampling.EVERY_TOKEN)  # replies and padding


# --- cuts and layouts -------------------------------------------------------------------------------------

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
class Long(worlds.TwoTurns):
    """Three turns, the later two like the second of two; the second is the last after a coin of 1."""

    max_turns = 3

    def step(self, state, seat, token, mask, key):
        following, reply = super().step({**state, "turn": jnp.minimum(state["turn"], 1)}, seat, token, mask, key)
        done = (state["turn"] > 0) & (reply.done | (following["coin"] == 1))
        return {**following, "turn": state["turn"] + 1}, reply.replace(done=done, truncated=jnp.zeros((), bool))


LENGTH = 9
LONG = Long(length=LENGTH)


@functools.cache
def begun():
    states = play.begin(LONG, jnp.arange(5), "train", jnp.int32(0), KEY, 8)
    return play.views(LONG, states, 8), samplers.keys_for(5, 8), states


@functools.cache
def whole(strings=None):
    return jax.device_get(pieces(0, 0, strings)(*begun()))


@pytest.mark.default_tier("2-0-True")
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
    told = conversation.begin(LONG, states, sampling.Ends((STOP,), PAD, strings))
    for number in range(-(-LENGTH // segment)):
        before = 0 if number == 0 else now.length
        now, told = jax.device_get(run(prompts, keys, told, now, jnp.full((40,), number == 0)))
        assert (now.length - before).max() <= segment
        going = now.finish == types.Finish.UNFINISHED
        cuts |= {"turn"} if np.any(going & (told.count > 0)) else set()
        cuts |= {"reply"} if np.any(going & (told.place > 0) & (told.place < told.size)) else set()
    assert segment > 2 or cuts == {"turn", "reply"}
    for name in ("token", "mask", "turn", "finish", "length", "kept", *FLOATS):
        np.testing.assert_array_equal(getattr(now, name), getattr(sample, name), name)
    for name in ("paid", "outcome", "valid", "done", "over", "parts", "extra", "world", "turn", "ended"):
        jax.tree.map(np.testing.assert_array_equal, getattr(told, name), getattr(talk, name))
    reward = [conversation.token_reward(*jax.tree.map(jnp.asarray, pair)) for pair in ((now, told), (sample, talk))]
    np.testing.assert_array_equal(*reward)


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("compact", [1, 2])
def test_a_batch_that_shrinks_changes_nothing(compact):
    sample, talk = whole()
    compacted, told = jax.device_get(pieces(0, compact, None)(*begun()))
    assert compacted.slots < sample.slots and len(set(sample.length.tolist())) > 2
    same = dataclasses.replace(compacted, slots=sample.slots)
    jax.tree.map(np.testing.assert_array_equal, same, sample)
    unread = {name: getattr(talk, name) for name in ("told", "written", "strings")}
    jax.tree.map(np.testing.assert_array_equal, dataclasses.replace(told, **unread), talk)


def test_stop_strings_end_a_turn_and_begin_anew_with_the_next():
    sample, talk = whole(STRINGS)
    matched = across = 0
    for b in range(40):
        turns = written(sample.token[b], sample.mask[b], sample.turn[b])
        full = sample.length[b] == LENGTH
        for k, turn in enumerate(turns):
            assert turn[-1] == STOP or turn[-2:] == [2, 1] or len(turn) == 2 or (full and k == len(turns) - 1)
            matched += turn == [2, 1]
        own = np.flatnonzero(sample.mask[b] > 0)
        for t, u in itertools.pairwise(own):  # the end of one turn, the reply, the beginning of the next
            string = sample.token[b, t : u + 1]
            across += sample.turn[b, t] != sample.turn[b, u] and list(string[-2:]) == [2, 1] and own[-1] > u
            if list(string[-2:]) == [2, 1] and sample.turn[b, t] != sample.turn[b, u] and own[-1] > u:
                assert sample.turn[b, u + 1] == sample.turn[b, u]  # the turn went on
    assert matched > 5 and across > 2
    # the world reads end-of-sequence in place of the string: turn (2, 1) holds no 1 that is paid
    first = [b for b in range(40) if written(sample.token[b], sample.mask[b], sample.turn[b])[0] == [2, 1]]
    assert first and np.all(talk.paid[first, 0] == 0)


# --- seats --------------------------------------------------------------------------------------------------


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


# --- chapters -----------------------------------------------------------------------------------------------


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
            own = r.mask[mine] > 0
            np.testing.assert_allclose(r.token_reward[mine][own], [row["reward"].get(t, 0.0) for t in range(own.sum())])
            assert np.isclose(sum(r.reward[mine]), want.unearned[s] * bool(mine))
            for b in mine:
                assert r.outcome[b] == want.reply.outcome[s] and r.domain[b] == want.reply.domain
                assert r.parts[world.parts[0]][b] == want.reply.parts[world.parts[0]][s]
                assert r.finish[b] == (types.Finish.STOP if want.done else types.Finish.LENGTH)
            np.testing.assert_allclose(r.extra[world.extra[0]][mine][own], row["extra"])
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


# --- keys ---------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("world", [ONE, TWO, PAGES], ids=["one", "two", "pages"])
def test_a_vmapped_rollout_is_that_of_each_member(world):
    setup, index = setup_of(world, 4), jnp.arange(3)
    tables = jnp.stack([jnp.asarray(t, jnp.float32) for t in (TABLE, TABLE[::-1].copy())])
    keys = sampling.row_keys(KEY, 0, jnp.repeat(index, 4), jnp.tile(jnp.arange(4), 3))
    states = play.begin(world, index, "train", jnp.int32(0), KEY, 4)
    config, ends = setup.settings.sampler, setup.ends

    def run(table, axis_name=None):
        if world.rows == "chapters":
            book = chapters.write(TOY, (table,), np.zeros((12, 1), int), world, states, keys, config, ends, axis_name=axis_name)
            return book.sample.token, book.sample.behaviour_logp, book.talk.paid
        prompts = play.views(world, states, 4)
        length = world.completion_length
        found = conversation.converse(
            TOY, table, world, states, prompts, keys, config, ends, length=length, axis_name=axis_name
        )
        return found[0].token, found[0].behaviour_logp, found[1].paid

    swept = jax.jit(jax.vmap(functools.partial(run, axis_name="sweep"), axis_name="sweep"))(tables)
    for member, table in enumerate(tables):
        for x, y in zip(swept, jax.jit(run)(table), strict=True):
            np.testing.assert_array_equal(x[member], y)


# --- worlds with defects --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("turn", "completion_length is 7, and a turn has up to 9 tokens"),
        ("turns", "max_turns is 0: expected a whole number of at least 1"),
        ("begin", "begin: KeyError: 'no problems'"),
        ("prompt", r"prompt: prompt is int32\[2\]: expected int32\[3\]"),
        ("step", "step: RuntimeError: out of cards"),
        ("state", "step: the state was .* and became .*'new'"),
        ("drifts", "step: the state was .* and became .*'turn': 'float32"),
        ("long", r"Reply.token is int32\[1, 4\]: expected int32\[1, 3\]"),
        ("float", r"Reply.token is float32\[1, 3\]: expected int32\[1, 3\]"),
        ("reward", r"Reply.reward is float32\[\]: expected float32\[1\]"),
        ("done", r"Reply.done is float32\[\]: expected bool\[\]"),
        ("parts", r"Reply.parts has \['twos'\]: expected \['ones'\], as World.parts"),
        ("extra", r"Reply.extra has \[\]: expected \['coin'\], as World.extra"),
    ],
)
def test_a_world_with_a_defect_is_refused_before_anything_compiles(defect, message):
    with pytest.raises(ValueError, match=f"(?s)task 'two_turns': {message}|task 'two_turns': step: {message}"):
        tiny.program("reinforce()", task=f"tests.worlds.broken({defect!r})")
