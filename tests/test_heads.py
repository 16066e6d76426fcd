"""A critic's head on the policy's trunk: both outputs of one reading, and the sum of two losses in one step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models, types
from rljax.algorithms import interpreter, seams
from rljax.training import phases
from tests import tiny

WEIGHT = 0.3


@functools.cache
def made(shared: bool):
    return tiny.program("ppo(kl=0.0)", learner__shared_critic=WEIGHT if shared else 0.0, model__scan=False)


@pytest.mark.full
def test_one_reading_gives_what_two_models_give():
    setup = made(True).steps[0].setup
    assert set(setup.networks) == {"policy"} and setup.networks["policy"].architecture.output == "both"
    state = made(True).steps[0].begin(None, made(True).key)
    assert set(state.params) == {"policy"}
    params = {**state.params["policy"], "scalar": jnp.linspace(-1, 1, 32)}
    rows = made(True).steps[0].rollout(state, made(True).key)
    both = jax.jit(lambda p: phases.score(setup, "policy", p, rows, types.Needs(value=True, entropy=True)))(params)
    apart = made(False).steps[0].setup
    assert set(apart.networks) == {"policy", "value"}
    logp = jax.jit(lambda p: phases.score(apart, "policy", p, rows, types.Needs(entropy=True)))(
        {k: v for k, v in params.items() if k != "scalar"}
    )
    value = jax.jit(lambda p: phases.score(apart, "value", p, rows, types.Needs(value=True)).value)(params)
    np.testing.assert_allclose(both.logp, logp.logp, atol=1e-6)
    np.testing.assert_allclose(both.entropy, logp.entropy, atol=1e-6)
    np.testing.assert_allclose(both.value, value, atol=1e-6)
    assert np.abs(value).max() > 0.1


@pytest.mark.full
def test_the_loss_on_one_trunk_is_the_sum_and_trains_both_heads():
    program = made(True)
    step = program.steps[0]
    algorithm = step.setup.algorithm
    assert [o.module for o in algorithm.objectives] == ["policy"]
    state = step.begin(None, program.key)
    policy = {**state.params["policy"], "scalar": jnp.linspace(-1, 1, 32)}  # a critic with something to unlearn
    before = jax.device_get(policy)
    state = state.replace(params={"policy": policy})
    assert step.fused is not None
    state, metrics = step.fused(state, program.key)
    terms = {name: value for name, value in metrics.items() if name.startswith("loss/")}
    assert set(terms) == {"loss/policy", "loss/value"}
    np.testing.assert_allclose(metrics["loss"], sum(terms.values()), rtol=1e-6)
    after = jax.device_get(state.params["policy"])
    assert np.any(after["scalar"] != before["scalar"]) and np.any(after["embedding"] != before["embedding"])


@pytest.mark.full
def test_the_critics_term_is_weighed():
    plain = seams.algorithm("ppo(kl=0.0)", "test")
    joined = seams.on_one_trunk(plain, WEIGHT)
    rng = np.random.default_rng(0)
    draw = lambda: jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)  # noqa: E731
    rows = types.Rollout(
        mask=jnp.ones((4, 3)), reward=jnp.ones(4), group=jnp.arange(4), behaviour_logp=draw(), proximal_logp=draw(),
        advantage=draw(), value=draw(), returns=draw(),
    )  # fmt: skip
    scores = types.Scores(logp=draw(), value=draw())
    losses = []
    for algorithm in (plain, joined):
        state = interpreter.init(algorithm)
        for o, inner in zip(algorithm.objectives, state["objectives"], strict=True):
            ready, inner = interpreter.prepare_minibatch(o, rows, None, inner, jax.random.key(0))
            losses.append(interpreter.loss(o, ready, scores, inner, jax.random.key(0))[0])
    policy, value, both = losses
    np.testing.assert_allclose(both, policy + WEIGHT * value, rtol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "says"), [("orz()", "gives its critic epochs"), ("grpo(kl=0.0)", "trains no critic")]
)
def test_what_cannot_stand_on_one_trunk(algorithm, says):
    with pytest.raises(ValueError, match=f"shared_critic=0.5: .*{says}"):
        seams.on_one_trunk(seams.algorithm(algorithm, "test"), 0.5)


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
