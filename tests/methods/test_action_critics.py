"""Critics of actions and soft actor-critic: scores, fixed points, replayed windows, and what is refused."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.language import errors
from rljax.methods import penalty
from rljax.methods.source import memory
from rljax.models import actors
from rljax.run import loop, programs
from rljax.training import phases
from rljax.transforms import modules, schedule
from tests.support import control, tiny

ONE = jax.devices()[:1]
PENDULUM, SQUASHED = "pendulum(horizon=12)", "pendulum(horizon=11)"


def config(task, algorithm, names=("q", "q_2"), **fields):
    """Return the config of a run with critics and their followers."""
    return with_critics(control.config(task, algorithm, **fields), names)


def with_critics(c, names):
    for name in names:
        c.module[name] = rljax.module(weights="random")
        c.module[f"{name}_target"] = rljax.module(follows=name, rate=0.5)
    return c


# --- scores -----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("kind", ["gaussian", "squashed", "denoiser", "categorical"])
def test_q_is_the_output_of_a_network_of_state_and_action(kind):
    """Of categorical actions it is the logit of the action taken."""
    shape, chain = actors.Mlp(layers=1, width=4, squash=kind == "squashed"), actors.Denoising(2 * (kind == "denoiser"))
    one = actors.Actor(shape, 3, "gaussian" if kind == "squashed" else kind, 2, chain, "action")
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


LEAST = modules.divergence(modules.LEAST, "q", "q_2")


def least(kind, temperature=1.0):
    """Return (a function of the policy's parameters to E min Q [5, 6], the same in NumPy, the parameters)."""
    squash, std = kind in ("squashed", "spread"), "output" if kind == "spread" else "free"
    shape = actors.Mlp(layers=1, width=4, squash=squash, log_std=-0.4, std=std)
    plain = "categorical" if kind == "categorical" else "gaussian"
    policy, critic = (actors.Actor(shape, 3, plain, 2, output=output) for output in ("logits", "action"))
    params, *each = (one.init(jax.random.key(i)) for i, one in enumerate((policy, critic, critic)))
    params = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(9), x.shape), params)
    r = np.random.default_rng(1)
    seen, z = r.normal(size=(5, 6, 3)), r.normal(size=(5, 6, 2))
    taken = jnp.zeros((5, 6), jnp.int32) if plain == "categorical" else jnp.zeros((5, 6, 2))
    motion = actors.Motion(jnp.asarray(seen, jnp.float32), taken)
    rows = types.Rollout(jnp.ones((5, 6)), jnp.zeros(5), jnp.zeros(5, int), motion=motion)
    rows = rows.replace(extra={"noise": jnp.asarray(z, jnp.float32)})
    teachers = {name: (critic, tree) for name, tree in zip(("q", "q_2"), each, strict=True)}

    def scored(params):
        needs = types.Needs(divergence=frozenset({LEAST}))
        return policy.score(params, rows, needs, teachers=teachers, temperature=temperature).divergence[LEAST]

    def numpy(params):
        out = control.network(params, seen)
        if plain == "categorical":
            p = np.exp(out / temperature)
            q = np.min([control.network(tree, seen) for tree in each], axis=0) / temperature
            return np.sum(p / p.sum(axis=-1, keepdims=True) * q, axis=-1)
        if kind == "spread":
            out, log_std = out[..., :2], np.clip(out[..., 2:] - 0.4, -20.0, 2.0)
        else:
            log_std = np.asarray(params["log_std"], np.float64)
        u = out + np.exp(log_std) * np.sqrt(temperature) * z
        action = np.tanh(u) if squash else np.clip(u, -1, 1)
        return np.min([control.network(tree, np.concatenate([seen, action], -1))[..., 0] for tree in each], axis=0)

    return scored, numpy, params


@pytest.mark.full
@pytest.mark.parametrize("kind", ["gaussian", "squashed", "spread", "categorical"])
def test_the_expected_q_and_its_gradient_are_those_of_the_definition(kind):
    """The gradient, through the drawn action, is the finite difference of the sum in float64."""
    for temperature in (1.0, 0.7):
        scored, numpy, params = least(kind, temperature)
        np.testing.assert_allclose(scored(params), numpy(params), atol=1e-5)
    gradient = jax.grad(lambda x: jnp.sum(scored(x)))(params)
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(params)))
    for i, leaf in enumerate(leaves):
        slope = np.zeros(leaf.shape)
        for place in np.ndindex(leaf.shape):
            moved = [
                [x + h * (n == i) * _unit(x.shape, place, n == i) for n, x in enumerate(leaves)] for h in (1e-5, -1e-5)
            ]
            up, down = (numpy(jax.tree.unflatten(tree, x)).sum() for x in moved)
            slope[place] = (up - down) / 2e-5
        np.testing.assert_allclose(jax.tree.leaves(gradient)[i], slope, atol=2e-3, rtol=2e-3)


def _unit(shape, place, here):
    e = np.zeros(shape)
    if here:
        e[place] = 1.0
    return e


def every(samples, shift=0.0):
    """Return (log int exp Q da of 4 states of one action, estimated; the same by quadrature; its gradient there)."""
    shape = actors.Mlp(layers=1, width=8, squash=True)
    policy, critic = (actors.Actor(shape, 3, "gaussian", 1, output=output) for output in ("logits", "action"))
    params, tree = jax.tree.map(lambda x: x * 3.0, critic.init(jax.random.key(4))), policy.init(jax.random.key(5))
    seen, (one, two) = jax.random.normal(jax.random.key(1), (1, 4, 3)), jax.random.split(jax.random.key(2))
    wide = (1, 4, samples, 1)
    drawn = jnp.concatenate([jax.random.uniform(one, wide, minval=-1.0), jax.random.normal(two, wide)], axis=2)
    rows = types.Rollout(jnp.ones((1, 4)), jnp.zeros(1), jnp.zeros(1, int), extra={"candidates": drawn})
    rows = rows.replace(motion=actors.Motion(seen, jnp.zeros((1, 4, 1))))
    name = modules.divergence(f"{modules.EVERY}_{samples}", "policy")

    def estimate(params):
        needs = types.Needs(log_normaliser=True, divergence=frozenset({name}))
        return critic.score(params, rows, needs, teachers={"policy": (policy, tree)}).divergence[name][0]

    nodes, weights = np.polynomial.legendre.leggauss(400)
    seen = np.broadcast_to(np.asarray(seen)[0, :, None], (4, 400, 3))
    q = control.network(params, np.concatenate([seen, np.broadcast_to(nodes[None, :, None], (4, 400, 1))], -1))[..., 0]
    whole = np.log(np.exp(q) @ weights)
    jacobian = jax.jacobian(
        lambda p: critic.of_action(p, jnp.asarray(seen), jnp.asarray(nodes)[None, :, None] + 0 * seen[..., :1])
    )
    mean = jax.tree.map(
        lambda x: np.einsum("sn,sn...->s...", np.exp(q - whole[:, None]) * weights, x), jacobian(params)
    )
    return estimate, whole, params, mean


@pytest.mark.full
def test_the_integral_over_actions_and_its_gradient_converge_to_quadrature():
    """The error of log int exp Q falls as 1 / sqrt(N), and the gradient is that of Q under softmax Q."""
    (near, want, params, mean), (far, *_) = every(20_000), every(100)
    errors = [np.abs(np.asarray(f(params)) - want) for f in (near, far)]
    assert np.all(errors[0] < 0.02) and errors[0].max() < errors[1].max()
    gradient = jax.jacobian(near)(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=0.05), gradient, mean)


@pytest.mark.full
def test_the_sum_over_actions_that_can_be_counted_is_exact():
    policy = actors.Actor(actors.Mlp(layers=1, width=8), 3, "categorical", 4, output="action")
    params, seen = policy.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (2, 5, 3))
    legal = jax.random.uniform(jax.random.key(2), (2, 5, 4)) < 0.7
    legal = legal.at[..., 0].set(True)
    rows = types.Rollout(jnp.ones((2, 5)), jnp.zeros(2), jnp.zeros(2, int))
    rows = rows.replace(motion=actors.Motion(seen, jnp.zeros((2, 5), jnp.int32), legal))
    name = modules.divergence(f"{modules.EVERY}_3", "policy")
    needs = types.Needs(log_normaliser=True, divergence=frozenset({name}))
    s = policy.score(params, rows, needs, teachers={"policy": (policy, params)})
    q = np.where(legal, control.network(params, seen), -np.inf)
    np.testing.assert_allclose(s.divergence[name], np.log(np.exp(q).sum(-1)), atol=1e-5)
    loss = penalty.conservative(1.0, 3).apply(types.Loss(), rows, s, (), jax.random.key(0))
    np.testing.assert_allclose(loss.terms["conservative"], np.log(np.exp(q).sum(-1)) - q[..., 0], atol=1e-5)


@pytest.mark.full
def test_the_expected_q_of_tokens_is_what_the_divergence_from_its_softmax_says():
    """KL(pi || softmax Q) = -H - E Q + log sum exp Q; of two critics it is at most that of each."""
    program = programs.build(with_critics(tiny.config("sac(share=0.0)"), ("q", "q_2")), devices=ONE)
    step = program.steps[0]
    state = step.begin(None, program.key)
    rows = step.rollout(state, program.key)
    names = [modules.divergence(modules.LEAST, *q) for q in (("q",), ("q_2",), ("q", "q_2"))]
    kl = modules.divergence("reverse_kl", "q")
    setup = step.setup
    trees = {name: state.params[name] for name in ("q", "q_2")}
    needs = types.Needs(divergence=frozenset({kl, *names}), entropy=True)
    s = phases.score(setup, "policy", state.params["policy"], rows, needs, teachers=trees)
    q = phases.score(setup, "q", state.params["q"], rows, types.Needs(log_normaliser=True))
    mask = np.asarray(rows.mask)
    one, two, both = (mask * np.asarray(s.divergence[name]) for name in names)
    np.testing.assert_allclose(one, mask * (q.log_normaliser - s.entropy - s.divergence[kl]), atol=1e-4)
    assert np.all(both <= np.minimum(one, two) + 1e-5) and np.any(both < np.minimum(one, two) - 1e-3)


# --- pieces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.3, 0.9])
def test_the_weight_of_the_entropy_goes_to_where_the_entropy_is_the_target(target):
    """The policy softmax(Q / alpha) has an entropy that grows with alpha."""
    q, weight = np.array([1.0, 0.5, -0.3]), schedule.dual_entropy(target, 0.2, 0.05)

    def entropy(alpha):
        p = np.exp(q / alpha - max(q / alpha))
        p = p / p.sum()
        return -np.sum(p * np.log(p + 1e-300))

    state = weight.init()
    for _ in range(600):
        state = weight.update(state, {"live_entropy": jnp.float32(entropy(float(weight.value(state))))})
    low, high = 1e-3, 1e3
    for _ in range(80):  # bisection of the root
        middle = np.sqrt(low * high)
        low, high = (middle, high) if entropy(middle) < target else (low, middle)
    assert float(weight.value(state)) == pytest.approx(low, rel=1e-2)


@pytest.mark.full
def test_replayed_windows_are_drawn_uniformly_from_a_bounded_pool_with_their_motion():
    rows = types.Rollout(
        mask=jnp.ones((4, 2)), reward=jnp.zeros(4), group=jnp.arange(4), on_policy=jnp.ones(4),
        motion=actors.Motion(jnp.zeros((4, 2, 1)), jnp.zeros((4, 2), jnp.int32)),
    )  # fmt: skip
    piece = memory.replay(1.0, 3)
    pool, seen = piece.init(rows, None), []
    assert pool["rows"].motion.observation.shape == (12, 2, 1)
    select = jax.jit(lambda r, pool, key: piece.select(r, pool, 4, key))
    for n in range(400):
        marked = rows.motion.replace(observation=jnp.zeros((4, 2, 1)) + n, taken=jnp.zeros((4, 2), jnp.int32) + n)
        out, pool = select(rows.replace(motion=marked), pool, jax.random.key(n))
        np.testing.assert_array_equal(out.motion.observation[..., 0], out.motion.taken)
        seen.append(n - np.asarray(out.motion.taken[:, 0]))
    ages = np.concatenate(seen[3:])
    assert {*ages} == {1, 2, 3}
    counts = np.bincount(ages)[1:]
    np.testing.assert_allclose(counts / counts.sum(), 1 / 3, atol=4 * np.sqrt(2 / 9 / counts.sum()))


# --- in a run ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "call"),
    [
        *((task, call) for task in ("cartpole(horizon=12)", PENDULUM) for call in ("iql()", "q_critics()")),
        ("cartpole(horizon=12)", "q_critics(alpha=0.1)"),
        *((task, "cql(samples=3)") for task in ("cartpole(horizon=12)", SQUASHED)),
    ],
)
def test_a_step_trains_critics_of_actions_and_moves_their_followers(task, call):
    squash = {"model__mlp__squash": True} if task == SQUASHED else {}
    program = programs.build(config(task, call, seam__source="unrolled(5)", **squash), devices=ONE)
    step = program.steps[0]
    state = step.begin(None, program.key)
    before = jax.device_get(state)
    state, metrics = step.fused(state, program.key)
    assert int(state.skipped_total) == 0 and np.isfinite(metrics["q/loss/value"])
    assert tiny.equal(before.params["policy"], state.params["policy"]) == call.startswith("q_critics")
    for name in ("q", "q_2"):
        moved = jax.tree.map(lambda a, b: (a + b) / 2, before.params[name], jax.device_get(state.params[name]))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.frozen[f"{name}_target"], moved)
        assert not tiny.equal(before.params[name], state.params[name])
    assert not tiny.equal(state.params["q"], state.params["q_2"])


SAC = {"algorithm": "sac(alpha=dual_entropy(-1.0))", "seam__source": "unrolled(5) | replay(1.0, 3)"}


def sac(**fields):
    return config(PENDULUM, **SAC | {"model__mlp__squash": True, "batch__prompts": 16} | fields)


@pytest.mark.full
def test_sac_learns_the_soft_values_of_an_enumerable_world():
    """Q is the fixed point of soft Q-iteration, and the policy softmax(Q / alpha); time limits are bootstrapped."""
    alpha, gamma = 0.5, 0.8
    q = np.zeros((4, 2))
    for _ in range(300):
        v = alpha * np.log(np.exp(q / alpha).sum(axis=1)) * (np.arange(4) != control.END)
        q = control.PAID + gamma * v[control.NEXT]
    c = config(control.config().task, f"sac({alpha}, {gamma})", seam__source="unrolled(3) | replay(1.0, 20)")
    c.batch.prompts, c.learner.epochs = 32, 4
    c.model.mlp.width = 16
    c.phase.main.steps = 1500
    c.phase.main.optimizer = "adam(learning_rate=linear_schedule(1e-2, 1e-4, 6000))"
    program = programs.build(c, devices=ONE)
    step = program.steps[0]
    state = step.begin(None, program.key)
    run = jax.jit(lambda state: jax.lax.fori_loop(0, 1500, lambda _, s: step.fused(s, program.key)[0], state))
    params = jax.device_get(run(state).params)
    seen = np.eye(4)[:3, :3]
    for name in ("q", "q_2"):
        np.testing.assert_allclose(control.network(params[name], seen), q[:3], atol=0.05)
    p = np.exp(control.network(params["policy"], seen))
    want = np.exp(q[:3] / alpha)
    np.testing.assert_allclose(p / p.sum(1, keepdims=True), want / want.sum(1, keepdims=True), atol=0.02)


@pytest.mark.full
def test_micro_batches_and_devices_of_drawn_actions_add():
    one = {"learner__epochs": 2, "phase__main__optimizer": "sgd(learning_rate=0.01)"}
    results = []
    for parts, devices in ((1, 1), (4, 1), (1, 8)):
        c = sac(**one, learner__microbatches=parts, mesh__data=devices)
        program = programs.build(c, devices=jax.devices()[:devices])
        step = program.steps[0]
        state = step.begin(None, program.key)
        results.append(jax.device_get(step.update(state, step.rollout(state, program.key), program.key)[0].params))
    for other in results[1:]:
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), results[0], other)


@pytest.mark.full
def test_a_run_with_replayed_windows_resumes_bit_for_bit(tmp_path):
    c = sac(phase__main__steps=6, log__rollouts=0)
    whole = loop.train(c, str(tmp_path / "whole"), progress=False, devices=ONE)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for step in (4, 5, 6):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / str(step), ignore_errors=True)
    again = loop.train(c, str(tmp_path / "cut"), progress=False, devices=ONE)
    assert float(whole.history[-1]["fired"]) == 1.0
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(run.state) for run in (whole, again)))


def test_a_denoiser_has_no_drawn_action_to_differentiate():
    c = config(PENDULUM, **SAC, model__denoising__steps=2)
    with pytest.raises(ValueError, match="'policy' needs the expectation of Q over its actions, and a denoiser's"):
        programs.build(c, devices=ONE)


def test_a_critic_of_actions_reads_whole_chains():
    c = config(PENDULUM, **SAC, model__denoising__steps=2, model__denoising__positions="step")
    with pytest.raises(ValueError, match=r"positions='step': a critic of actions reads whole ones, 'action'"):
        programs.build(c, devices=ONE)


@pytest.mark.parametrize(
    ("algorithm", "names", "message", "error"),
    [
        ("ilql()", ("q", "q_2"), r"reverse_kl from 'q_.*target', a critic of actions, not a distribution", ValueError),
        ("q_critics(alpha=0.1)", ("q", "q_2"), r"penalty nll\(.*the scores have no logp", errors.CodeError),
        ("cql()", ("q", "q_2"), r"'q' needs log int exp Q over actions whose density .*squash=True", ValueError),
        ("q_critics(q=('q', 'policy'), target=('q_target',))", ("q",), r"'policy' needs the logsumexp", ValueError),
        ("q_critics(q=('q', 'value'), target=('q_target',))", ("q",), r"module.value: values and log-prob", ValueError),
    ],
)
def test_critics_that_cannot_be_are_refused_by_name(algorithm, names, message, error):
    with pytest.raises(error, match=message):
        programs.build(config(PENDULUM, algorithm, names), devices=ONE)
