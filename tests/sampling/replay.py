"""Episodes of ``tests.support.worlds``, and what their rows must hold, replayed by hand from the contract.

The policy is the table of ``test_sampling``, which has an oracle in NumPy, or its transformer.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from rljax import sampling, types
from rljax.training import rows
from rljax.training.producers import play
from tests.sampling import sampling_cases as samplers
from tests.support import tiny, worlds

TABLE, TOY, TRANSFORMER = samplers.TABLE, samplers.TOY, samplers.TRANSFORMER
STOP, PAD, KEY = worlds.STOP, worlds.PAD, jax.random.key(11)
ONE, TWO = worlds.TwoTurns(), worlds.Cards()
PAGES = worlds.TwoTurns("chapters")
FOLD = jax.jit(jax.random.fold_in)
SOFT = 0.5 * TABLE  # no conversation of one episode is rarer than 1e-3
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
        return play.seated(setup, {"policy": params}, ("policy",), step, rows.each_once(index), "train", key)[0]

    return jax.jit(run)


def sampled(world, problems=6, samples=4, *, table=TABLE, step=3, key=KEY, **options):
    """Return the rollout of problems 0, 1, ..., or of an array of problems."""
    index = jnp.arange(problems) if isinstance(problems, int) else jnp.asarray(problems)
    params = samplers.parameters() if options.get("model") is TRANSFORMER else jnp.asarray(table, jnp.float32)
    return jax.device_get(compiled(world, samples, **options)(params, index, jnp.int32(step), key))


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
            replies = [[t for t, m in zip(reply.token[s], reply.mask[s], strict=True) if m] for s in range(world.seats)]
            for column in itertools.zip_longest(*replies):
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
    length, seats, episodes = world.completion_length, world.seats, []
    for e in range(len(r.reward) // seats):
        rows, problem = slice(e * seats, (e + 1) * seats), e // samples
        turns = [written(*x) for x in zip(r.action.token[rows], r.mask[rows], r.turn[rows], strict=True)]
        state, episode = episode_of(world, problem, e % samples, step, key)
        want = Replayed(world, turns, state, episode, length)
        episodes.append(want)
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
    return episodes


def want_count(replay, seat):
    return sum(s == seat for s, _ in replay.turns)
