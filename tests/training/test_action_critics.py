"""Critics that read states and actions of control worlds: their scores, their fixed points, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.language import errors
from rljax.models import actors
from rljax.run import programs
from rljax.transforms import modules
from tests.support import control, tiny

ONE = jax.devices()[:1]
PENDULUM = "pendulum(horizon=12)"


def config(task, algorithm, names=("q", "q_2"), **fields):
    """Return the config of a run with critics and their followers."""
    c = control.config(task, algorithm, **fields)
    for name in names:
        c.module[name] = rljax.module(weights="random")
        c.module[f"{name}_target"] = rljax.module(follows=name, rate=0.5)
    return c


# --- scores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "squashed", "denoiser", "categorical"])
def test_q_is_the_output_of_a_network_of_state_and_action(kind):
    """Of categorical actions it is the logit of the action taken."""
    shape = actors.Mlp(layers=1, width=4, squash=kind == "squashed", denoise=2 * (kind == "denoiser"))
    one = actors.Actor(shape, 3, "gaussian" if kind == "squashed" else kind, 2, output="action")
    params, r = one.init(jax.random.key(0)), np.random.default_rng(0)
    seen = r.normal(size=(5, 6, 3))
    taken = {"categorical": r.integers(0, 2, (5, 6)), "denoiser": r.normal(size=(5, 6, 3, 2))}
    taken = taken.get(kind, r.normal(size=(5, 6, 2)))
    acted = {"squashed": np.tanh, "denoiser": lambda u: np.clip(u[..., -1, :], -1, 1)}
    read = [seen, *([acted.get(kind, lambda u: np.clip(u, -1, 1))(taken)] if kind != "categorical" else ())]
    out = control.network(params, np.concatenate(read, axis=-1))
    want = out[..., 0] if kind != "categorical" else np.take_along_axis(out, taken[..., None], -1)[..., 0]
    motion = actors.Motion(*(jnp.asarray(x, jnp.float32 if x.dtype == float else jnp.int32) for x in (seen, taken)))
    rows = types.Rollout(jnp.ones((5, 6)), jnp.zeros(5), jnp.zeros(5, int), motion=motion)
    scores = one.score(params, rows, types.Needs(log_normaliser=True))
    np.testing.assert_allclose(modules.logit(scores), want, atol=1e-5)
    assert (scores.logp is None) == (kind != "categorical")


# --- in a run ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("call", ["iql()", "q_critics()"])
@pytest.mark.parametrize("task", ["cartpole(horizon=12)", PENDULUM])
def test_a_step_trains_critics_of_actions_and_moves_their_followers(task, call):
    program = programs.build(config(task, call, seam__source="unrolled(5)"), devices=ONE)
    step = program.steps[0]
    state = step.begin(None, program.key)
    before = jax.device_get(state)
    state, metrics = step.fused(state, program.key)
    assert int(state.skipped_total) == 0 and np.isfinite(metrics["q/loss/value"])
    assert tiny.equal(before.params["policy"], state.params["policy"]) == (call == "q_critics()")
    for name in ("q", "q_2"):
        moved = jax.tree.map(lambda a, b: (a + b) / 2, before.params[name], jax.device_get(state.params[name]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.frozen[f"{name}_target"], moved)
        assert not tiny.equal(before.params[name], state.params[name])
    assert not tiny.equal(state.params["q"], state.params["q_2"])


@pytest.mark.parametrize(
    ("algorithm", "names", "message", "error"),
    [
        ("q_critics(alpha=0.1)", ("q", "q_2"), r"penalty nll\(.*the scores have no logp", errors.CodeError),
        ("q_critics(q=('q', 'policy'), target=('q_target',))", ("q",), r"'policy' needs the logsumexp", ValueError),
        ("q_critics(q=('q', 'value'), target=('q_target',))", ("q",), r"module.value: values and log-prob", ValueError),
    ],
)
def test_critics_that_cannot_be_are_refused_by_name(algorithm, names, message, error):
    with pytest.raises(error, match=message):
        programs.build(config(PENDULUM, algorithm, names), devices=ONE)
