"""Heads on another module's trunk: several outputs of one reading, one gradient step, or none into the trunk."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, models, types
from rljax.config import files, resolve
from rljax.run import programs
from rljax.training import phases
from rljax.training.learning import gradients
from tests.support import tiny

WEIGHT = 0.3
HEAD = {"module__value__trunk": "policy", "module__value__trunk_weight": WEIGHT}
STOPPED = {"module__value__trunk": "policy", "module__value__stop_trunk": True}


@algorithms.recipe
def three():
    """PPO, and a reward model that learns from the same rows."""
    ppo = algorithms.TABLE["ppo"](kl=0.0)
    return dataclasses.replace(ppo, objectives=(*ppo.objectives, *algorithms.TABLE["bradley_terry"]().objectives))


def made(algorithm="ppo(kl=0.0)", **fields):
    return tiny.program(algorithm, model__scan=False, **fields)


@functools.cache
def begun():
    """Return parameters of a policy and two heads with something to unlearn, and rows of that policy."""
    step, key = made(**HEAD).steps[0], made(**HEAD).key
    state = step.begin.__wrapped__(None, key)
    rows = step.rollout(state, key)
    reward = (jnp.arange(rows.reward.shape[0]) % 3 == 0) * 1.0  # differs within groups, whatever the policy can do
    scalar = jnp.linspace(-1, 1, 32)
    params = {"policy": state.params["policy"], "value": {"scalar": scalar}, "reward": {"scalar": scalar[::-1] ** 2}}
    return jax.device_get((params, rows.replace(reward=reward)))


def state_of(program):
    """Return the first state of a program with those parameters; a module that is no head has a copy of the trunk."""
    (step,), params = program.steps, begun()[0]
    state = step.begin.__wrapped__(None, program.key)  # not compiled: once for each program would be many
    chosen = {name: {**params["policy"], **params[name]} for name in state.params}
    chosen = {name: {key: chosen[name][key] for key in tree} for name, tree in state.params.items()}
    return jax.tree.map(jnp.copy, jax.device_put(state.replace(params=chosen), step.sharding))


@pytest.mark.full
def test_one_reading_gives_what_two_networks_give():
    program, (params, rows) = made(**HEAD), begun()
    (setup,), state = program.setups, state_of(program)
    assert setup.phase.joint == ((0, 1),) and {*state.params["value"]} == {"scalar"}
    outputs = {name: network.architecture.output for name, network in setup.networks.items()}
    assert outputs == {"policy": "logits", "value": "scalar"}
    asked, needs = types.Needs(value=True), types.Needs(entropy=True)

    @jax.jit
    def both(p):
        one = phases.score(setup, "policy", p["policy"], rows, needs, heads={"value": (p["value"], asked)})
        policy = phases.score(setup, "policy", p["policy"], rows, needs)
        return one, policy, phases.score(setup, "value", setup.whole(p, "value"), rows, asked).value

    one, policy, value = both(params)
    np.testing.assert_allclose(one.logp, policy.logp, atol=1e-6)
    np.testing.assert_allclose(one.entropy, policy.entropy, atol=1e-6)
    np.testing.assert_allclose(one.heads["value"].value, value, atol=1e-6)
    assert np.abs(value).max() > 0.1


def gradient_of(program):
    """Return a function of the numbers of objectives and what they train, and the first state.

    It returns loss, metrics and gradient, on made-up advantages.
    """
    (setup,), state, (_, rows) = program.setups, state_of(program), begun()
    r, shape = np.random.default_rng(0), rows.mask.shape
    drawn = {name: r.normal(size=shape).astype(np.float32) for name in ("advantage", "returns", "value")}
    place = np.arange(shape[0], dtype=np.int32)
    rows = rows.replace(**drawn, proximal_logp=rows.raw_logp, extra={**rows.extra, "place": place})

    def run(joint, part):
        inner = [state.algorithm["objectives"][number] for number in joint]
        minibatch = gradients.prepare(setup, joint, part, state, rows, inner, jax.random.key(0))
        return gradients.of_minibatch(minibatch, part)

    return run, state


def gradients_of(program, *joints):
    """Return loss, metrics and gradient of some objectives, for each of ``joints``."""
    run, state = gradient_of(program)
    parts = [program.setups[0].part(state.params, joint) for joint in joints]
    return jax.jit(lambda parts: [run(joint, part) for joint, part in zip(joints, parts, strict=True)])(parts)


@pytest.mark.full
def test_the_gradient_of_a_trunk_is_the_sum():
    """Of the policy, a critic and a reward model on its trunk: g_policy + w g_value + g_reward, with micro-batches."""
    call = "tests.training.test_heads.three()"
    on_trunk = made(call, **HEAD, module__reward__trunk="policy", learner__microbatches=2)
    assert on_trunk.setups[0].phase.joint == ((0, 1, 2),)
    ((loss, metrics, got),) = gradients_of(on_trunk, (0, 1, 2))
    apart = gradients_of(made(call), (0,), (1,), (2,))
    weights = (1.0, WEIGHT, 1.0)
    np.testing.assert_allclose(loss, sum(w * one[0] for w, one in zip(weights, apart, strict=True)), rtol=1e-5)
    np.testing.assert_allclose([m["loss"] for m in metrics], [one[0] for one in apart], rtol=1e-5)
    policy, value, reward = (jax.device_get(one[2]) for one in apart)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-6)
    close(got["value"]["scalar"], WEIGHT * value.pop("scalar"))
    close(got["reward"]["scalar"], reward.pop("scalar"))
    jax.tree.map(close, got["policy"], jax.tree.map(lambda p, v, r: p + WEIGHT * v + r, policy, value, reward))
    assert all(max(np.abs(x).max() for x in jax.tree.leaves(tree)) > 0.01 for tree in (policy, value, reward))


@pytest.mark.full
def test_no_gradient_of_a_stopped_head_enters_its_trunk():
    """It is taken in the head alone, and the policy's by the very operations of a run with a critic apart."""
    assert made(**STOPPED).setups[0].phase.joint == ((0,), (1,))
    (stopped, state), (apart, _) = gradient_of(made(**STOPPED)), gradient_of(made())
    assert {*jax.eval_shape(lambda: stopped((1,), state.params["value"])[2])} == {"scalar"}
    texts = {str(jax.make_jaxpr(lambda x, f=f: f((0,), x))(begun()[0]["policy"])) for f in (stopped, apart)}
    assert len({re.sub(r" at 0x[0-9a-f]+", "", text) for text in texts}) == 1


@pytest.mark.full
def test_alone_in_a_phase_a_head_trains_nothing_else():
    program, (params, rows) = made("critic_warmup()", **HEAD), begun()
    assert program.setups[0].phase.joint == ((0,),)
    state = program.steps[0].update(state_of(program), rows, program.key)[0]
    moved = {
        name: jax.tree.map(lambda x, y: np.abs(x - y).max(), jax.device_get(x), params[name])
        for name, x in state.params.items()
    }
    assert moved["value"]["scalar"] > 0 and {*jax.tree.leaves(moved["policy"])} == {0.0}


@pytest.mark.full
def test_heads_of_several_modules_and_trunks():
    c = tiny.config("ppo(kl=0.0)")
    c.phases = ("reward", "main")
    c.phase.reward = rljax.phase(algorithm="bradley_terry()", steps=2, warmup=1)
    c.phase.main.seam.reward = "learned()"
    c.module.value = rljax.module(trunk="reward", weights="random")
    c.module.reward = rljax.module(width=16, heads=2)
    program = programs.build(c, devices=jax.devices()[:1])
    assert [setup.phase.joint for setup in program.setups] == [((0,),), ((0,), (1,))]
    assert [sorted(step.shape.params) for step in program.steps] == [["policy", "reward"], ["policy", "value"]]
    assert [sorted(step.shape.frozen) for step in program.steps] == [[], ["reward"]]
    assert program.steps[1].shape.params["value"]["scalar"].shape == (16,)
    c.module.reward = rljax.module(trunk="policy")
    c.module.value = rljax.module(trunk="policy")
    last = programs.build(c, devices=jax.devices()[:1]).steps[1]
    assert last.setup.phase.joint == ((0, 1),)
    assert {name: x.shape for name, x in last.shape.frozen["reward"].items()} == {"scalar": (32,)}


REFUSED = [
    ("orz()", {}, r"config.module.value.trunk='policy' .*trains 'value' with epochs=12 and its trunk with 1"),
    ("ppo(critic_optimizer='sgd(0.1)')", {}, r"trains 'value' with optimizer='sgd\(0.1\)' and its trunk with 'adamw"),
    ("ppo()", {"trunk": "polcy"}, r"config.module.value.trunk='polcy': no such module. Did you mean 'policy'"),
    ("ppo()", {"trunk": "", "like": ""}, r"config.module.value.like='': no such module"),
    ("ppo()", {"trunk": "value"}, r"config.module.value.trunk='value': it is a head itself"),
    ("ppo()", {"layers": 2}, r"config.module.value.layers: its network is the network of trunk='policy'"),
    ("ppo()", {"weights": "FOLDER"}, r"config.module.value: weights='FOLDER': a head starts at 0, or from 'random'"),
    ("ppo()", {"like": "reward"}, r"config.module.value: like='reward': its network is the network of trunk='policy'"),
    ("ppo()", {"trunk": "", "stop_trunk": True}, r"stop_trunk=True: it has no effect on a module that is no head"),
    (
        "ppo()",
        {"trunk_weight": 0.5, "stop_trunk": True},
        r"trunk_weight=0.5: it has no effect on a module that shares no",
    ),
]


@pytest.mark.parametrize(("algorithm", "fields", "says"), REFUSED, ids=range(len(REFUSED)))
def test_heads_that_cannot_be(algorithm, fields, says):
    c = tiny.config(algorithm)
    c.module.value = rljax.module(**{"trunk": "policy", **fields})
    with pytest.raises(ValueError, match=says):
        resolve.phases(c)


def test_a_head_has_no_log_probs_and_the_old_field_names_the_new_one():
    c = tiny.config("prime()")
    c.module.prm = rljax.module(trunk="policy")
    with pytest.raises(ValueError, match=r"config.module.prm.trunk='policy' .*reads log-probs of 'prm', and a head is"):
        resolve.phases(c)
    with pytest.raises(ValueError, match=r"config.learner.shared_critic: unknown field. Here .*module.value.trunk"):
        files.override(c, "learner.shared_critic", 0.5)
    with pytest.raises(ValueError, match=r"config.learner.shared_critic: unknown field. Here .*module.value.trunk"):
        files.from_dict({"learner": {"shared_critic": 0.0}})


@pytest.mark.full
def test_a_model_of_both_refuses_nothing_and_the_others_what_they_lack():
    sizes = {"vocabulary": 8, "layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "hidden": 8}
    for output in ("logits", "scalar", "both"):
        model = models.build(models.Architecture(**sizes, output=output, tied=False))
        params = jax.eval_shape(model.init, jax.random.key(0))
        assert ("scalar" in params) == (output != "logits") and ("unembedding" in params) == (output != "scalar")
        assert jax.tree.structure(params) == jax.tree.structure(
            jax.tree.map(lambda _: 0, model.axes, is_leaf=lambda x: isinstance(x, tuple))
        )
