"""Acting in one scan, against a loop in Python over the same world in NumPy; cuts, ends, crashes, greedy actions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.environments import control
from rljax.models import actors
from rljax.sampling import acting
from rljax.transforms.source import groups

GOAL, HORIZON, ROWS = 4, 7, 60


class _Corridor:
    """Walk from 0 to ``GOAL`` by -1, 0 or +1; at 0 no step leads back, and one in five steps slips to 0.

    In problem 3 of five the reward at the third place is not a number, in problem 4 what is observed there is infinite.
    """

    name, parts, observed, actions, horizon = "corridor", ("moved",), 2, control.Discrete(3), HORIZON

    def begin(self, index, split):
        return {"place": jnp.int32(0), "kind": index % 5}

    def observe(self, state):
        place = state["place"].astype(jnp.float32)
        far = jnp.where((state["kind"] == 4) & (state["place"] == 3), jnp.inf, state["kind"] / 5.0)
        return jnp.stack([place / GOAL, far.astype(jnp.float32)])

    def legal(self, state):
        return jnp.stack([state["place"] > 0, jnp.bool_(True), jnp.bool_(True)])

    def step(self, state, action, key):
        place = jnp.where(jax.random.bernoulli(key, 0.2), 0, state["place"] + action - 1)
        reward = jnp.where((state["kind"] == 3) & (place == 3), jnp.nan, 0.5 * place - 0.25 * action)
        moved = jnp.abs(place - state["place"]).astype(jnp.float32)
        return {**state, "place": place}, control.Moved(reward, place == GOAL, {"moved": moved})

    def solved(self, state, total):
        return (state["place"] == GOAL) & (total > 2.0)


RULES = _Corridor()
ACTOR = actors.Actor(actors.Mlp(layers=1, width=4), 2, "categorical", 3)
INDEX, KEYS = jnp.arange(ROWS), jax.random.split(jax.random.key(5), ROWS)
NAMES = ("observation", "legal", "taken", "reward", "logp", "entropy", "mask", "time")


@functools.cache
def unroll(steps, temperature=1.0, traced=True):
    return jax.jit(
        lambda params, episodes: acting.unroll(ACTOR, RULES, params, episodes, KEYS, steps, temperature, traced)
    )


@functools.cache
def parameters():
    """Return a policy that walks to the right more often than not."""
    params = ACTOR.init(jax.random.key(1))
    bias = params["layer_1"]["bias"] + jnp.array([-0.5, 0.0, 1.0])
    return {**params, "layer_1": {"kernel": params["layer_1"]["kernel"] * 60, "bias": bias}}


def begun():
    return acting.begun(RULES, INDEX, "train")


def seen(kind, place):
    return np.array([place / GOAL, np.inf if kind == 4 and place == 3 else kind / 5], np.float32)


@functools.cache
def looped(temperature):
    """Return the trace of each row as a list of dictionaries, and how it ended, one step after another."""
    params = parameters()
    draw = jax.jit(lambda x, key, legal: ACTOR.draw(params, x[None], key[None], legal[None], temperature))
    coin = jax.jit(lambda key: jax.random.bernoulli(key, 0.2))
    traces, ends = [], []
    for row in range(ROWS):
        kind, place, total, walked, trace = row % 5, 0, 0.0, 0.0, []
        end = None
        for time in range(HORIZON):
            first, second = jax.random.split(jax.random.fold_in(KEYS[row], time))
            legal = np.array([place > 0, True, True])
            drawn = jax.tree.map(lambda x: x[0], draw(seen(kind, place), first, legal))
            action = int(drawn.taken)
            after = 0 if coin(second) else place + action - 1
            crashed = kind in (3, 4) and after == 3
            reward = 0.0 if crashed else 0.5 * after - 0.25 * action
            trace.append(
                {"observation": seen(kind, place), "legal": legal, "taken": action, "reward": reward, "mask": 1.0}
                | {"logp": float(drawn.logp), "entropy": float(drawn.entropy), "time": time}
            )
            if crashed:
                end = types.Finish.STOP, types.Outcome.CRASHED
                break
            total, walked, place = total + reward, walked + abs(after - place), after
            if place == GOAL or time == HORIZON - 1:
                finish = types.Finish.STOP if place == GOAL else types.Finish.LENGTH
                right = place == GOAL and total > 2.0
                end = finish, types.Outcome.CORRECT if right else types.Outcome.WRONG
                break
        traces.append(trace)
        ends.append({"place": place, "total": total, "moved": walked, "time": len(trace), "end": end})
    return traces, ends


def check(trace, traces, atol=1e-6):
    trace = jax.device_get(trace)
    for row, steps in enumerate(traces):
        np.testing.assert_array_equal(trace.mask[:, row], np.arange(trace.mask.shape[0]) < len(steps))
        for time, step in enumerate(steps):
            for name in NAMES:
                np.testing.assert_allclose(getattr(trace, name)[time, row], step[name], atol=atol, err_msg=name)
        for name in ("reward", "logp", "entropy"):
            assert np.all(getattr(trace, name)[len(steps) :, row] == 0)


@pytest.mark.default_tier("1.0")
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_a_scan_is_a_loop(temperature):
    traces, ends = looped(temperature)
    episodes, trace = unroll(HORIZON, temperature)(parameters(), begun())
    check(trace, traces)
    np.testing.assert_array_equal(episodes.system["place"], [e["place"] for e in ends])
    np.testing.assert_allclose(episodes.total, [e["total"] for e in ends], atol=1e-5)
    np.testing.assert_array_equal(episodes.parts["moved"], [e["moved"] for e in ends])
    np.testing.assert_array_equal(episodes.time, [e["time"] for e in ends])
    np.testing.assert_array_equal(episodes.finish, [e["end"][0] for e in ends])
    np.testing.assert_array_equal(episodes.outcome, [e["end"][1] for e in ends])
    assert np.all(np.isnan(episodes.last)) and not np.any(episodes.live)
    if temperature:  # the loop met every way to end, and rows that were cut by the horizon are not of one kind
        assert {e["end"] for e in ends} >= {
            *((types.Finish.STOP, outcome) for outcome in (types.Outcome.CORRECT, types.Outcome.CRASHED)),
            (types.Finish.LENGTH, types.Outcome.WRONG),
        }
        assert {3, 4} == {row % 5 for row, e in enumerate(ends) if e["end"][1] == types.Outcome.CRASHED}
    else:
        policy = ACTOR.policy(parameters(), trace.observation, trace.legal)
        np.testing.assert_array_equal(trace.taken, policy.mode())
        assert not np.any(trace.logp)  # the action was certain


def test_without_a_trace_the_episodes_are_the_same():
    one, _ = unroll(HORIZON)(parameters(), begun())
    other, trace = unroll(HORIZON, traced=False)(parameters(), begun())
    assert trace is None
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.full), 3])
def test_windows_are_parts_of_the_whole(window):
    whole, trace = unroll(HORIZON)(parameters(), begun())
    episodes, windows = begun(), []
    for number in range(-(-HORIZON // window)):
        assert number == 0 or np.any(episodes.live)
        episodes, part = unroll(window)(parameters(), episodes)
        windows.append(part)
    joined = jax.tree.map(lambda *x: np.concatenate(x)[:HORIZON], *windows)
    live = np.asarray(trace.mask) > 0
    np.testing.assert_array_equal(joined.mask, trace.mask)
    for name in ("taken", "time", "legal", "observation"):
        np.testing.assert_array_equal(getattr(joined, name)[live], np.asarray(getattr(trace, name))[live])
    for name in ("reward", "logp", "entropy"):
        np.testing.assert_allclose(getattr(joined, name), getattr(trace, name), atol=1e-6)
    for name in ("time", "outcome", "finish", "parts", "system"):
        jax.tree.map(np.testing.assert_array_equal, getattr(episodes, name), getattr(whole, name))
    np.testing.assert_allclose(episodes.total, whole.total, atol=1e-6)


def test_episodes_that_have_ended_do_not_move():
    ended, _ = unroll(HORIZON)(parameters(), begun())
    again, trace = unroll(3)(jax.tree.map(lambda x: -x, parameters()), ended)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ended), jax.device_get(again))
    for name in ("mask", "reward", "logp", "entropy"):
        assert not np.any(getattr(trace, name)), name
    some = groups.put(jnp.arange(ROWS) % 2 == 0, begun(), ended)  # half of them begin anew beside the others
    after, trace = unroll(3)(parameters(), some)
    _, alone = unroll(3)(parameters(), begun())
    np.testing.assert_array_equal(trace.taken[:, ::2], alone.taken[:, ::2])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1::2], y[1::2]), *map(jax.device_get, (after, ended)))


class _Line:
    """x' = x + a, unbounded, paid -|a|; without legal actions."""

    name, parts, observed, actions, horizon = "line", (), 1, control.Box(2), 50

    def begin(self, index, split):
        return index.astype(jnp.float32) * jnp.ones(2)

    def observe(self, state):
        return jnp.sum(state)[None]

    def step(self, state, action, key):
        return state + action, control.Moved(-jnp.sum(jnp.abs(action)), jnp.bool_(False))

    def solved(self, state, total):
        return jnp.bool_(False)


@pytest.mark.parametrize("squash", [False, True])
def test_the_world_reads_bounded_actions_and_rows_store_what_was_drawn(squash):
    actor = actors.Actor(actors.Mlp(layers=1, width=4, squash=squash, log_std=0.5), 1, "gaussian", 2)
    params, rules = actor.init(jax.random.key(0)), _Line()
    run = jax.jit(lambda e: acting.unroll(actor, rules, params, e, KEYS[:4], 6, 1.0))
    episodes, trace = run(acting.begun(rules, jnp.arange(4), "train"))
    taken = np.asarray(trace.taken, np.float64)
    assert taken.shape == (6, 4, 2) and trace.legal is None and np.max(np.abs(taken)) > 1.0
    read = np.tanh(taken) if squash else np.clip(taken, -1, 1)
    np.testing.assert_allclose(trace.reward, -np.abs(read).sum(axis=-1), atol=1e-5)
    np.testing.assert_allclose(episodes.system, np.arange(4)[:, None] + read.sum(axis=0), atol=1e-5)
    assert np.all(episodes.live) and np.all(episodes.outcome == types.Outcome.UNJUDGED)
