"""Worlds of Gymnasium: each step equals one of Gymnasium's, from the same state with the same action."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.environments.control.shipped.acrobot import Acrobot
from rljax.environments.control.shipped.cartpole import Cartpole
from rljax.environments.control.shipped.mountain_car import MountainCar
from rljax.environments.control.shipped.pendulum import Pendulum
from tests.environments.control import flying

COUNT = 4
LOOSE = {"rtol": 1e-4, "atol": 2e-5}
WORLDS = {
    "Pendulum-v1": (Pendulum(), [1, 1, 1 / 8], 2.0, None),
    "CartPole-v1": (Cartpole(), [1 / 2.4, 1 / 2, 180 / 12 / np.pi, 1 / 2], None, 475),
    "Acrobot-v1": (Acrobot(), [1, 1, 1, 1, 1 / (4 * np.pi), 1 / (9 * np.pi)], None, -100),
    "MountainCarContinuous-v0": (MountainCar(), [1 / 0.6, 1 / 0.07], 1.0, 90),
}


def pushing(rules, state, key):
    """Swing with the motion, and sometimes at random: the car and the acrobot then come to their ends."""
    action, keep = flying.random(rules, state, key), jax.random.bernoulli(key, 0.9)
    if isinstance(rules, MountainCar):
        return jnp.where(keep, jnp.where(state[1:] < 0, -1.0, 1.0), action)
    if isinstance(rules, Acrobot):
        return jnp.where(keep, jnp.where(state[3] < 0, 0, 2), action)
    return action


@pytest.mark.parametrize("name", WORLDS)
def test_steps_are_those_of_gymnasium_until_the_episode_ends(name):
    rules, scale, torque, threshold = WORLDS[name]
    made = gymnasium.make(name)
    theirs = made.unwrapped
    assert made.spec.max_episode_steps == rules.horizon and threshold in (None, made.spec.reward_threshold)
    states, actions, moved = jax.device_get(flying.episodes(rules, pushing, "train", jnp.arange(COUNT)))
    observed = np.asarray(jax.vmap(jax.vmap(rules.observe))(states))
    inner = states["motion"] if isinstance(rules, Cartpole) else states
    offset = np.asarray([np.pi / 6, 0]) if isinstance(rules, MountainCar) else 0.0
    ends = 0
    theirs.reset(seed=0)
    for row in range(COUNT):
        for t in range(rules.horizon):
            theirs.state, theirs.steps_beyond_terminated = inner[row, t].astype(np.float64), None
            given = int(actions[row, t]) if torque is None else torque * actions[row, t]
            seen, reward, done, truncated, _ = theirs.step(given)
            np.testing.assert_allclose(observed[row, t + 1], (seen + offset) * scale, **LOOSE)
            np.testing.assert_allclose(moved.reward[row, t], reward, **LOOSE)
            assert done == moved.done[row, t] and not truncated
            if done:
                ends += 1
                break
    assert (ends > 0) == (name != "Pendulum-v1")


@pytest.mark.parametrize("name", WORLDS)
def test_first_states_have_the_distribution_of_gymnasium(name):
    rules, *_ = WORLDS[name]
    theirs = gymnasium.make(name).unwrapped
    drawn = []
    for seed in range(500):
        theirs.reset(seed=seed)
        drawn.append(theirs.state)
    for split in ("train", "heldout"):
        states = flying.begun(rules, split, 500)
        ours = np.asarray(states["motion"] if isinstance(rules, Cartpole) else states)
        quantiles = np.linspace(0, 1, 6)
        both = [np.quantile(first, quantiles, axis=0) for first in (np.asarray(drawn), ours)]
        width = np.ptp(both[0], axis=0)
        assert np.all(np.abs(both[0] - both[1]) <= 0.16 * width)  # 5 standard errors of a difference of medians


def test_no_place_of_the_car_is_the_first_of_two_problems():
    rules = MountainCar()
    places = [
        jax.jit(jax.vmap(lambda i, s=s: rules.begin(i, s)))(jnp.arange(rules.size(s))) for s in ("train", "heldout")
    ]
    places = np.concatenate(places)[:, 0]
    assert len(np.unique(places)) == 2**20 + 2**16 and places.min() >= -0.6 and places.max() <= -0.4


def test_what_is_solved():
    still = jnp.zeros(2)
    assert Pendulum().solved(still, jnp.float32(-200)) and not Pendulum().solved(still, jnp.float32(-201))
    assert Pendulum(horizon=20).solved(still, jnp.float32(-19)) and not Pendulum(horizon=20).solved(still, -21.0)
    assert MountainCar().solved(still, jnp.float32(90)) and not MountainCar().solved(still, jnp.float32(0))
    assert Cartpole().solved(None, jnp.float32(475)) and not Cartpole().solved(None, jnp.float32(474))
    up, down = jnp.asarray([np.pi, 0, 0, 0]), jnp.zeros(4)
    assert Acrobot().solved(up, jnp.float32(-100)) and not Acrobot().solved(up, jnp.float32(-101))
    assert not Acrobot(horizon=50).solved(down, jnp.float32(-50))


# --- contexts of cartpole ---------------------------------------------------------------------------

VARIED = Cartpole(length=(0.3, 0.7), gravity=(5.0, 15.0), heldout_length=(0.8, 1.2), shown=True, bands=3)


def test_contexts_are_uniform_in_their_intervals_and_the_splits_share_none():
    train, heldout = (flying.begun(VARIED, split)["context"] for split in ("train", "heldout"))
    for values, low, high in (
        (train[:, 0], 0.3, 0.7),
        (heldout[:, 0], 0.8, 1.2),
        (train[:, 3], 5, 15),
        (heldout[:, 3], 5, 15),
    ):
        assert low <= values.min() < low + 0.05 * (high - low) and high - 0.05 * (high - low) < values.max() <= high
        np.testing.assert_allclose(values.mean(), (low + high) / 2, atol=5 * (high - low) / np.sqrt(12 * 256))
    for values in (train, heldout):
        np.testing.assert_array_equal(values[:, 1:3], np.float32([[0.1, 1.0]] * 256))


@pytest.mark.full
def test_bands_divide_the_lengths_of_both_splits():
    index = jnp.arange(256)
    for split in ("train", "heldout"):
        band, length = np.asarray(VARIED.domain(index, split)), flying.begun(VARIED, split)["context"][:, 0]
        np.testing.assert_array_equal(band, np.minimum((length - 0.3) / 0.3, 2).astype(int))
    assert VARIED.domains == 3
    assert VARIED.domain_names == ("length 0.3-0.6", "length 0.6-0.9", "length 0.9-1.2")
    assert set(np.asarray(Cartpole().domain(index, "train"))) == {0}


def test_the_context_is_observed_only_if_it_is_shown():
    blind = Cartpole(length=(0.3, 0.7), gravity=(5.0, 15.0), heldout_length=(0.8, 1.2))
    state = jax.tree.map(lambda x: x[7], flying.begun(VARIED, "train"))
    np.testing.assert_array_equal(VARIED.observe(state)[:4], blind.observe(state))
    np.testing.assert_allclose(VARIED.observe(state)[4:], state["context"] / np.asarray([0.5, 0.1, 1, 9.8]), rtol=1e-6)
    assert (VARIED.observed, blind.observed) == (8, 4)


def test_physics_of_a_context_are_those_of_gymnasium_with_its_numbers():
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.reset(seed=0)
    states, actions, _ = jax.device_get(flying.episodes(VARIED, flying.random, "heldout", jnp.arange(4), 20))
    for row in range(4):
        length, pole, cart, gravity = map(float, states["context"][row, 0])
        theirs.length, theirs.masspole, theirs.masscart, theirs.gravity = length, pole, cart, gravity
        theirs.total_mass, theirs.polemass_length = pole + cart, pole * length
        for t in range(20):
            theirs.state, theirs.steps_beyond_terminated = states["motion"][row, t].astype(np.float64), None
            np.testing.assert_allclose(states["motion"][row, t + 1], theirs.step(int(actions[row, t]))[0], **LOOSE)
