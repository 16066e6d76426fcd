"""Control worlds that ship: mazes, flights, and what all of them promise."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments
from rljax.environments.control.shipped.point_maze import PointMaze
from rljax.environments.control.shipped.quadrotor import Quadrotor
from rljax.language import parse
from tests.environments.control import flying

NAMES = [name for name, place in environments.TASKS.items() if ".control." in place and name not in ("brax", "gymnax")]
SPLITS = ("train", "heldout")


def task_of(call):
    """Return the task that a config names."""
    return parse.one(call, parse.Registry("task", environments.TASKS), "task")


def last(states):
    """Return the last state of each episode."""
    return jax.tree.map(lambda x: x[:, -1], states)


def flown(rules, state, actions):
    """Return all states and ``Moved`` of a list of actions ``[H, 4]``."""

    def step(state, action):
        after, moved = rules.step(state, action, jax.random.key(0))
        return after, (after, moved)

    return jax.device_get(jax.jit(lambda state: jax.lax.scan(step, state, actions)[1])(state))


# --- all --------------------------------------------------------------------------------------------


@pytest.mark.default_tier("cartpole", "pendulum")
@pytest.mark.parametrize("name", NAMES)
def test_a_world_keeps_its_contract(name):
    task = task_of(name)
    rules = task.rules
    states, _, moved = flying.episodes(rules, flying.random, "train", jnp.arange(4), 30)
    observed = jax.vmap(jax.vmap(rules.observe))(states)
    assert observed.shape == (4, 31, rules.observed) and observed.dtype == jnp.float32
    assert moved.reward.shape == moved.done.shape == (4, 30)
    assert moved.reward.dtype == jnp.float32 and moved.done.dtype == jnp.bool_
    assert {*moved.parts} == {*rules.parts} and rules.parts == task.parts and task.name == name
    assert all(part.dtype == jnp.float32 for part in moved.parts.values())
    assert jnp.all(jnp.isfinite(observed)) and jnp.all(jnp.isfinite(moved.reward))
    assert jnp.max(jnp.abs(observed[:, 0])) < 6 and task.completion_length == rules.horizon
    solved = jax.vmap(rules.solved)(last(states), jnp.sum(moved.reward, axis=1))
    assert solved.shape == (4,) and solved.dtype == jnp.bool_
    sizes = [task.size(split) for split in SPLITS]
    assert sizes[0] >= 2**20 and sizes[1] >= 2**16
    for split, size in zip(SPLITS, sizes, strict=True):  # problems wrap around, and differ between the splits
        assert task.text(3, split) == task.text(3 + size, split)
        assert len(task.text(3, split).split()) == rules.observed
    assert task.text(3, "train") != task.text(4, "train") != task.text(4, "heldout")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("lqr(states=0)", "states must be a whole number in \\[1, 16\\]"),
        ("lqr(horizon=0)", "horizon=0"),
        ("lqr(radius=1.5, horizon=100)", "radius: 1.5 to the power of horizon=100 is above 1e6"),
        ("pendulum(horizon=0)", "horizon must be a whole number in \\[1, 1e9\\]"),
        ("cartpole(length=(0.7, 0.3))", "length: \\(0.7, 0.3\\) is empty"),
        ("cartpole(heldout_pole=(0.3, 0.2))", "heldout_pole: \\(0.3, 0.2\\) is empty"),
        ("cartpole(length=(0.3, 0.7), heldout_length=(0.7, 0.9))", "heldout_length: \\(0.7, 0.9\\) overlaps length"),
        ("cartpole(gravity=(0.0, 9.8))", "gravity"),
        ("cartpole(bands=0)", "bands=0"),
        ("point_maze(side=2)", "side=2"),
        ("point_maze(reward='dense')", "reward must be one of 'sparse', 'shaped'"),
        ("quadrotor(gates=0)", "gates=0"),
        ("quadrotor(crash=-1.0)", "crash=-1.0"),
        ("mountain_car(steps=3)", "steps"),
    ],
)
def test_wrong_settings_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        task_of(call)


# --- point_maze -------------------------------------------------------------------------------------


def cells_of(states, side):
    """Return the column and the row of each place."""
    return np.floor(np.moveaxis(states["place"], -1, 0)).astype(int)


@pytest.mark.full
def test_a_point_never_passes_a_wall_nor_leaves_the_maze():
    rules = PointMaze(reward="shaped")
    for policy in (flying.random, flying.bouncer):
        states, _, moved = jax.device_get(flying.episodes(rules, policy, "train", jnp.arange(32)))
        column, row = cells_of(states, 4)
        assert min(column.min(), row.min()) == 0 and max(column.max(), row.max()) == 3
        ways = states["ways"][:, 0]
        crossed = 0
        for n, t in zip(*np.nonzero((column[:, 1:] != column[:, :-1]) | (row[:, 1:] != row[:, :-1])), strict=True):
            (c, r), (d, s) = ((x[n, t + k] for x in (column, row)) for k in (0, 1))
            assert abs(c - d) <= 1 and abs(r - s) <= 1
            if c != d:  # first along the east, in the old row
                assert ways[n, r * 4 + c, 1 if d > c else 3]
            if r != s:
                assert ways[n, r * 4 + d, 2 if s > r else 0]
            crossed += 1
        assert crossed > 50 and moved.parts["bumps"].sum() > 50
        distance = np.take_along_axis(states["distance"][:, 0], (row * 4 + column).reshape(32, -1), axis=1)
        nearer = (distance[:, 0] - distance[:, -1]) / states["first"][:, 0]
        np.testing.assert_allclose(moved.reward.sum(axis=1), nearer, atol=1e-5)


@pytest.mark.full
def test_a_wall_stops_the_point_and_takes_its_speed():
    rules = PointMaze()
    first = jax.tree.map(lambda x: x[0], flying.begun(rules, "train", 64))
    for way, push in enumerate(np.float32([[0, -1], [1, 0], [0, 1], [-1, 0]])):
        column, row = cell = np.floor(first["place"]).astype(int)
        states, moved = flown(rules, first, np.tile(push, (20, 1)))
        way_gone = np.cumsum([0.05, 0.8 * 0.05 + 0.05, 0.8 * (0.8 * 0.05 + 0.05) + 0.05])  # up to here there is no wall
        np.testing.assert_allclose(states["place"][:3] - first["place"], way_gone[:, None] * push, atol=1e-5)
        axis, wall = int(push[1] != 0), np.where(push < 0, cell, cell + 1)
        stopped = ~first["ways"][row * 4 + column, way]
        assert moved.parts["bumps"][-1] == 1 or not stopped
        if stopped:
            np.testing.assert_allclose(states["place"][-1, axis], (wall - 0.01 * push)[axis], atol=1e-5)
            assert not states["velocity"][-1].any()
        np.testing.assert_array_equal(states["place"][:, 1 - axis], first["place"][1 - axis])


def breadth_first(ways, start, side):
    """Return the number of ways from a cell to each cell that can be reached, by a search."""
    distance, queue = {int(start): 0}, collections.deque([int(start)])
    while queue:
        cell = queue.popleft()
        for way, offset in zip(ways[cell], (-side, 1, side, -1), strict=True):
            if way and cell + offset not in distance:
                distance[cell + offset] = distance[cell] + 1
                queue.append(cell + offset)
    return distance


@pytest.mark.full
@pytest.mark.parametrize("side", [4, pytest.param(7, marks=pytest.mark.full)])
def test_a_follower_of_the_path_reaches_the_goal_of_every_level(side):
    rules = PointMaze(side=side, horizon=20 * side**2)
    for split in SPLITS:
        index = jnp.arange(64)
        states, _, moved = jax.device_get(flying.episodes(rules, flying.follower, split, index))
        assert moved.done.any(axis=1).all() and (moved.reward.max(axis=1) == 1).all()
        end = moved.done.argmax(axis=1)
        at_end = jax.tree.map(lambda x, end=end: x[np.arange(64), end + 1], states)
        assert jax.vmap(rules.solved)(at_end, jnp.ones(64)).all()
        length = []
        for n in range(64):
            distance = breadth_first(states["ways"][n, 0], states["goal"][n, 0], side)
            assert sorted(distance) == list(range(side**2))
            assert [distance[cell] for cell in range(side**2)] == states["distance"][n, 0].tolist()
            column, row = np.floor(states["place"][n, 0]).astype(int)
            length.append(distance[row * side + column])
        band = np.asarray(rules.domain(index, split))
        np.testing.assert_array_equal(band, np.digitize(length, [side + 1, 2 * side + 1]))
    assert len(set(band)) > 1 and len(rules.domain_names) == rules.domains


@pytest.mark.full
def test_splits_share_no_level():
    rules, levels = PointMaze(side=3), {}
    for split in SPLITS:
        states = flying.begun(rules, split, 2048)
        rows = zip(states["ways"].reshape(2048, -1), states["goal"], states["place"], strict=True)
        levels[split] = {(ways.tobytes(), int(goal), place.tobytes()) for ways, goal, place in rows}
    assert not levels["train"] & levels["heldout"] and min(map(len, levels.values())) > 1000


def test_the_ways_around_a_point_are_observed():
    rules, whole = PointMaze(view=1), PointMaze(view=3)
    state = jax.tree.map(lambda x: x[5], flying.begun(rules, "train", 64))
    ways = np.pad(state["ways"][:, 1:3].reshape(4, 4, 2), ((3, 3), (3, 3), (0, 0)))
    column, row = np.floor(state["place"]).astype(int)
    for view, world in ((1, rules), (3, whole)):
        low = 3 - view
        around = ways[row + low : row + 3 + view + 1, column + low : column + 3 + view + 1]
        np.testing.assert_array_equal(world.observe(state)[8:], around.reshape(-1))
    middle = np.asarray([state["goal"] % 4, state["goal"] // 4]) + 0.5
    np.testing.assert_allclose(rules.observe(state)[6:8], (middle - state["place"]) / 4)


# --- quadrotor --------------------------------------------------------------------------------------

FREE = Quadrotor(drag=0.0, horizon=25)


@pytest.mark.full
def test_hovering_holds_and_falling_is_g_t_squared_half():
    first = FREE.begin(jnp.int32(0), "train")
    hover, moved = flown(FREE, first, jnp.zeros((25, 4)))
    np.testing.assert_array_equal(hover["position"], np.tile([0, 0, 2], (25, 1)))
    assert not moved.reward.any() and not moved.done.any()
    fall, moved = flown(FREE, first, jnp.zeros((25, 4)).at[:, 0].set(-1))
    time = 0.04 * np.arange(1, 26)
    np.testing.assert_allclose(fall["position"][:, 2], 2 - 9.81 * time**2 / 2, atol=1e-5)
    np.testing.assert_array_equal(moved.parts["crashed"], fall["position"][:, 2] < 0)
    assert moved.done.any() and np.all(moved.reward[moved.done] < -1)


@pytest.mark.full
def test_energy_and_the_norm_of_the_attitude_are_conserved_without_thrust():
    first = FREE.begin(jnp.int32(1), "train")
    first = {**first, "velocity": jnp.asarray([3.0, -2.0, 4.0])}
    spun = jax.random.uniform(jax.random.key(0), (25, 4), minval=-1).at[:, 0].set(-1)
    states, _ = flown(FREE, first, spun)
    energy = (states["velocity"] ** 2).sum(axis=1) / 2 + 9.81 * states["position"][:, 2]
    np.testing.assert_allclose(energy, 29 / 2 + 9.81 * 2, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(states["attitude"], axis=1), 1, atol=1e-6)
    assert np.abs(states["attitude"][-1] - [1, 0, 0, 0]).max() > 0.1
    dragged, _ = flown(Quadrotor(drag=0.5), first, spun)
    assert ((dragged["velocity"][:, 0] - states["velocity"][:, 0]) < 0).all()


def test_attitudes_turn_by_the_exponential_of_the_rates():
    states, _ = flown(FREE, FREE.begin(jnp.int32(1), "train"), jnp.tile(jnp.asarray([0.0, 0.5, -0.3, 0.8]), (25, 1)))
    frame = np.eye(3)
    rates = np.zeros(3)
    for t in range(25):
        rates = rates + 0.4 * (6 * np.asarray([0.5, -0.3, 0.8]) - rates)
        angle = 0.04 * np.linalg.norm(rates)
        x, y, z = rates / np.linalg.norm(rates)
        cross = np.asarray([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        frame = frame @ (np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)  # Rodrigues
        # the vertical in the body's frame is the last row
        observed = FREE.observe(jax.tree.map(lambda x, t=t: x[t], states))
        np.testing.assert_allclose(observed[3:6], frame[2], atol=1e-5)
        np.testing.assert_allclose(states["rates"][t], rates, rtol=1e-5)


@pytest.mark.full
def test_mirrored_tracks_give_mirrored_flights():
    rules = Quadrotor(horizon=60)
    flip, turn = np.float32([1, -1, 1]), np.float32([-1, 1, -1])
    first = rules.begin(jnp.int32(3), "train")
    actions = jax.random.uniform(jax.random.key(1), (60, 4), minval=-0.5, maxval=0.5)
    other = {**first, **{name: first[name] * flip[None] for name in ("gate", "direction")}}
    one, moved = flown(rules, first, actions)
    two, mirrored = flown(rules, other, actions.at[:, 1:].multiply(turn[None]))
    for name in ("position", "velocity"):
        np.testing.assert_allclose(one[name], two[name] * flip, atol=1e-4)
    np.testing.assert_allclose(moved.reward, mirrored.reward, atol=1e-5)
    seen, seen_mirrored = (np.asarray(jax.vmap(rules.observe)(s)) for s in (one, two))
    signs = np.concatenate([flip, flip, flip, flip, flip, turn, [1]])
    np.testing.assert_allclose(seen, seen_mirrored * signs, atol=1e-4)


@pytest.mark.full
def test_a_pilot_passes_all_gates_in_order():
    rules = Quadrotor()
    for split in SPLITS:
        states, _, moved = jax.device_get(flying.episodes(rules, flying.pilot, split, jnp.arange(32)))
        done = moved.done.argmax(axis=1)
        assert moved.done.any(axis=1).all() and not moved.parts["crashed"].any()
        assert all(states["passed"][n, done[n] + 1] == 4 for n in range(32))
        for n in range(32):
            for number, t in enumerate(np.flatnonzero(moved.parts["passed"][n])[:4]):
                gate, direction = states["gate"][n, 0, number], states["direction"][n, 0, number]
                before, after = states["position"][n, t], states["position"][n, t + 1]
                assert (before - gate) @ direction < 0 <= (after - gate) @ direction
                assert np.linalg.norm(after - gate) < 0.75 + np.linalg.norm(after - before)


@pytest.mark.parametrize(("aside", "speed", "passed"), [(0.7, 5.0, 1), (-0.7, 5.0, 1), (0.8, 5.0, 0), (0.0, -5.0, 0)])
def test_a_gate_is_passed_forwards_within_its_radius(aside, speed, passed):
    rules = Quadrotor(drag=0.0)
    first = rules.begin(jnp.int32(2), "train")
    gate, direction = np.asarray(first["gate"][0]), np.asarray(first["direction"][0])
    left = np.float32([-direction[1], direction[0], 0])
    place = gate - np.sign(speed) * 0.5 * direction + aside * left
    states, moved = flown(rules, {**first, "position": place, "velocity": speed * direction}, jnp.zeros((5, 4)))
    assert moved.parts["passed"].sum() == states["passed"][-1] == passed
    way = np.linalg.norm(np.concatenate([place[None], states["position"]]) - gate, axis=1) / 4
    first_steps = slice(0, 2)  # before any gate is passed, the metres nearer are paid
    np.testing.assert_allclose(moved.reward[first_steps], (way[:-1] - way[1:])[first_steps], atol=1e-5)


def test_splits_share_no_sequence_of_turns():
    rules = Quadrotor(gates=3)
    for split in SPLITS:
        states = flying.begun(rules, split, 512)
        direction, gates = states["direction"], states["gate"]
        heading = np.unwrap(np.arctan2(direction[..., 1], direction[..., 0]), axis=1)
        bins = np.floor((np.rad2deg(np.diff(heading, axis=1, prepend=0)) / 90 + 0.5) * 16).astype(int)
        assert bins.min() == 0 and bins.max() == 15
        held = bins.sum(axis=1) % 4 == 0
        assert held.all() if split == "heldout" else not held.any()
        steps = np.linalg.norm(np.diff(gates[..., :2], axis=1, prepend=0), axis=-1)
        assert 3 <= steps.min() and steps.max() <= 5 + 1e-4
        assert 1 <= gates[..., 2].min() and gates[..., 2].max() <= 3


# --- modes ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_modes_pay_for_the_direction_and_their_expert_draws_the_mixture():
    rules = environments.lookup("modes")(spread=0.05).rules
    states = jax.vmap(lambda i: rules.begin(i, "train"))(jnp.arange(20_000))
    examples, directions = (np.asarray(states[name], float) for name in ("example", "direction"))
    angle = 2 * np.pi * np.arange(8) / 8
    centers = 0.7 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    mode = np.argmin(np.sum((examples[:, None] - centers) ** 2, axis=-1), axis=1)
    assert np.abs(np.bincount(mode) / 20_000 - 1 / 8).max() < 4 * np.sqrt(1 / 8 * 7 / 8 / 20_000)
    np.testing.assert_allclose(np.std(examples - centers[mode], axis=0), 0.05, atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, atol=1e-5)
    assert np.abs(np.mean(examples * directions)) < 0.01  # whatever is asked
    asked = np.argmax(directions @ centers.T, axis=1)
    state = {name: x[0] for name, x in states.items()}
    for point in (centers[asked[0]], 0.9 * centers[asked[0]], -centers[asked[0]]):
        near = np.linalg.norm(point - centers[asked[0]]) <= 0.15
        for how in ("along", "mode"):
            one = environments.lookup("modes")(spread=0.05, reward=how).rules
            after, moved = one.step(state, jnp.asarray(point, jnp.float32), jax.random.key(0))
            expected = directions[0] @ point / 0.7 if how == "along" else float(near)
            assert float(moved.reward) == pytest.approx(expected, abs=1e-5)
            assert bool(moved.done) and bool(one.solved(after, moved.reward)) == near
