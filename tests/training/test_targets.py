"""Modules that follow another, and twin critics that bootstrap from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, types
from rljax.algorithms import interpreter
from rljax.algorithms.battery import batch as records
from rljax.config import resolve
from rljax.models.checkpoints import weights
from rljax.run import loop, programs
from rljax.run.evaluation import loading
from rljax.run.records import checkpoints
from rljax.training.learning import updates
from rljax.transforms import advantage
from tests.support import tiny
from tests.support.tiny import equal

ONE = jax.devices()[:1]
RATE = 0.25
TARGETS = ("value_target", "value_2_target")


def twins(**modules):
    """Return a config of twin critics on the policy's trunk, one stopped, and of heads that follow them."""
    c = tiny.config(f"twin_critics(kl=0.0, bootstrap={TARGETS})")
    c.checkpoint.max_to_keep = 9
    c.module.value = rljax.module(trunk="policy", stop_trunk=True)
    c.module.value_2 = rljax.module(trunk="policy", trunk_weight=0.5, weights="random")
    for name in ("value", "value_2"):
        c.module[f"{name}_target"] = rljax.module(trunk="policy", follows=name, rate=RATE)
    for name, module in modules.items():
        c.module[name] = module
    return c


# --- on arrays --------------------------------------------------------------------------------------


def test_the_target_moves_by_the_rate_and_stays_where_both_are_equal():
    r = np.random.default_rng(0)
    target, sources = r.normal(size=(3, 4)), r.normal(size=(6, 3, 4))
    got, want = {"x": jnp.asarray(target, jnp.float32)}, target
    for source in sources:
        got = updates.toward(got, {"x": jnp.asarray(source, jnp.bfloat16)}, RATE)
        want = (1 - RATE) * want + RATE * np.asarray(jnp.asarray(source, jnp.bfloat16), np.float64)
    np.testing.assert_allclose(got["x"], want, rtol=1e-6, atol=1e-6)
    assert got["x"].dtype == jnp.float32
    np.testing.assert_array_equal(updates.toward(got, got, 0.1)["x"], got["x"])


def test_values_of_several_critics_are_combined():
    r = np.random.default_rng(1)
    one, two = r.normal(size=(2, 3, 4))
    held = {name: types.Scores(value=jnp.asarray(x, jnp.float32)) for name, x in (("a", one), ("b", two))}
    rows = types.Rollout(jnp.ones((3, 4)), jnp.ones(3), jnp.zeros(3, int), scores=held, value=jnp.zeros((3, 4)))

    def value(*names, combine="min"):
        piece = advantage.values(names, combine)
        return np.asarray(piece.apply(rows, piece.init(), jax.random.key(0))[0].value)

    np.testing.assert_allclose(value("a", "b"), np.minimum(one, two), rtol=1e-6)
    np.testing.assert_allclose(value("a", "b", combine="mean"), (one + two) / 2, rtol=1e-6)
    np.testing.assert_array_equal(value("b"), held["b"].value)
    with pytest.raises(ValueError, match=r"values: module=\('a', 'a'\) must be at least one name, each once"):
        advantage.values(("a", "a"))


@pytest.mark.full
def test_two_equal_critics_are_one_to_the_last_bit():
    """The advantages and targets of ``ppo``, which the same pieces then read."""
    rows, _ = records.records(records.arrays())
    rows = rows.replace(scores={name: types.Scores(value=rows.value) for name in ("value", "value_2")})
    one, two = (algorithms.TABLE["ppo"](value_clip=None), algorithms.TABLE["twin_critics"]())

    @jax.jit
    def transformed(rows):
        done = [interpreter.transform(a, rows, interpreter.init(a), jax.random.key(0))[0] for a in (one, two)]
        return [(r.advantage, r.returns, r.value) for r in done]

    jax.tree.map(np.testing.assert_array_equal, *transformed(rows))
    policy, critic = ([piece.spec for piece in (*o.loss, o.reduce)] for o in one.objectives)
    assert [[piece.spec for piece in (*o.loss, o.reduce)] for o in two.objectives] == [policy, critic, critic]


# --- settings ---------------------------------------------------------------------------------------

TARGET = "value_target"
REFUSED = [
    ({TARGET: rljax.module(follows="valeu")}, r"config.module.value_target.follows='valeu': no such module"),
    ({TARGET: rljax.module(follows="value_2_target")}, r"follows='value_2_target': it follows 'value_2' itself"),
    (
        {TARGET: rljax.module(follows="value", layers=2)},
        r"value_target.layers: its network is the network of follows='value'",
    ),
    (
        {TARGET: rljax.module(follows="value", like="reward")},
        r"like='reward': its network is the network of follows='value'",
    ),
    ({TARGET: rljax.module(follows="value", weights="random")}, r"weights='random': it starts as a copy of"),
    ({TARGET: rljax.module(rate=0.5)}, r"config.module.value_target: rate=0.5: it has no effect without follows"),
    (
        {TARGET: rljax.module(follows="policy")},
        r"the phases read values or rewards of 'value_target', and 'policy' has",
    ),
    ({TARGET: rljax.module(follows="reward")}, r"follows='reward': no phase trains 'reward', so it never moves"),
    (
        {"value_2": rljax.module(follows="reward"), "value_2_target": rljax.module()},
        r"value_2.follows='reward': twin_critics.* trains 'value_2'",
    ),
    ({"value": rljax.module()}, r"value_target.trunk='policy': a head follows a head on the same trunk"),
]


@pytest.mark.parametrize(("modules", "says"), REFUSED, ids=range(len(REFUSED)))
def test_followers_that_cannot_be(modules, says):
    with pytest.raises(ValueError, match=says):
        resolve.phases(twins(**modules))


def test_critics_that_stay_equal_are_warned_of():
    c = tiny.config("twin_critics(kl=0.0)")
    (line,) = [line for line in resolve.phases(c)[0].warnings if "stay equal" in line]
    assert line.startswith("phase 'main': the modules 'value' and 'value_2' start equal") and "value_2.weights=" in line
    c.module.value_2 = rljax.module(weights="random")
    assert not any("stay equal" in line for line in resolve.phases(c)[0].warnings)


@pytest.mark.full
def test_a_follower_has_the_network_of_what_it_follows_in_float32():
    own = rljax.module(follows="value")
    c = twins(value_target=own, value=rljax.module(layers=2, param_dtype="bfloat16"))
    program = programs.build(c, devices=ONE)
    state = program.steps[0].shape
    assert {*state.params} == {"policy", "value", "value_2"} and {*state.frozen} == {*TARGETS}
    shapes = [jax.tree.map(lambda x: x.shape, tree) for tree in (state.frozen["value_target"], state.params["value"])]
    assert shapes[0] == shapes[1]
    assert {x.dtype.name for x in jax.tree.leaves(state.frozen["value_target"])} == {"float32"}
    assert state.params["value"]["embedding"].dtype == jnp.bfloat16
    assert {*state.frozen["value_2_target"]} == {"scalar"}


# --- in a run ---------------------------------------------------------------------------------------


@pytest.mark.full
def test_targets_follow_their_critics_but_not_a_skipped_update_and_resume_bit_for_bit(tmp_path):
    run = loop.train(twins(), tmp_path, progress=False, devices=ONE)
    program, (step,) = run.program, run.program.steps
    assert step.setup.phase.joint == ((0, 2), (1,)) and run.state.opt_state[2] == ()
    state = step.begin(None, program.key)
    assert np.any(np.asarray(state.params["value_2"]["scalar"]) != state.params["value"]["scalar"])
    want = {f"{name}_target": np.asarray(state.params[name]["scalar"]) for name in ("value", "value_2")}
    assert all(np.array_equal(state.frozen[name]["scalar"], x) for name, x in want.items())
    for _ in range(2):
        state, _ = step.fused(state, program.key)
        for name in ("value", "value_2"):
            want[f"{name}_target"] = (1 - RATE) * want[f"{name}_target"] + RATE * np.asarray(
                state.params[name]["scalar"]
            )
    for name, x in want.items():
        np.testing.assert_allclose(state.frozen[name]["scalar"], x, rtol=1e-6, atol=1e-8)
    assert equal(run.state, state)
    with checkpoints.Checkpointer(tmp_path / "checkpoints") as saved:
        resumed = saved.restore(step.shape, 1)[0]
    assert equal(step.fused(resumed, program.key)[0], run.state)
    # a head is read, and written, with the network of its trunk
    _, params, _ = loading.load(str(tmp_path), module="value_target")
    assert equal(params, step.setup.params(state, "value_target"))
    weights.save(str(tmp_path / "head"), program.model("value_target").architecture, params)
    assert equal(weights.load(str(tmp_path / "head"), program.model("value_target").architecture), params)
    kept, broken = jax.device_get(state.frozen), jax.tree.map(lambda x: x * jnp.nan, state.params["policy"])
    state, metrics = step.fused(state.replace(params={**state.params, "policy": broken}), program.key)
    assert metrics["skipped"] == 1 and equal(state.frozen, kept)
