"""The battery: every recipe of the table against its oracle and the invariances a loss must have."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, losses, types
from tests.reference import losses as oracle

# enrolling a recipe is one line: the call to test, where its defaults need company
CALLS = {name: {} for name in algorithms.TABLE} | {"dr_grpo": {"length": 6}}
KEY = jax.random.key(0)
B, T = 12, 6


def arrays(seed=0):
    """Make rows of three groups of unequal size, with gaps in the masks, one invalid row and one empty one."""
    r = np.random.default_rng(seed)
    mask = (r.random((B, T)) < 0.75).astype(np.float64)
    mask[:, 0] = 1
    mask[4] = 0
    group = np.array([7, 7, 7, 7, 7, 2, 2, 2, 2, 9, 9, 9])
    valid = np.ones(B)
    valid[8] = 0
    d = {name: -r.random((B, T)) * 2 for name in ("logp", "ref", "raw")}
    d["proximal"] = d["logp"] + r.normal(size=(B, T)) * 0.15
    d |= {"value": r.random((B, T)), "entropy": r.random((B, T))}
    return d | {"mask": mask, "group": group, "valid": valid, "reward": (r.random(B) < 0.5).astype(np.float64)}


def records(d):
    f = functools.partial(jnp.asarray, dtype=jnp.float32)
    rollout = types.Rollout(
        mask=f(d["mask"]),
        reward=f(d["reward"]),
        group=jnp.asarray(d["group"]),
        valid=f(d["valid"]),
        proximal_logp=f(d["proximal"]),
        behaviour_logp=f(d["proximal"]),
        raw_logp=f(d["raw"]),
        ref_logp=f(d["ref"]),
        value=f(d["value"]),
        finish=jnp.zeros(B, jnp.int32),
        version=jnp.zeros((B, T), jnp.int32),
    )
    return rollout, types.Scores(logp=f(d["logp"]), entropy=f(d["entropy"]), value=f(d["value"]))


def loss(algorithm, rollout, scores, number=0):
    """Return the loss of one objective on the whole batch, as the step computes it."""
    state = losses.init(algorithm)
    rollout, state = losses.transform(algorithm, rollout, state, KEY)
    o = algorithm.objectives[number]
    rollout, inner = losses.prepare(o, rollout, scores, state["objectives"][number], KEY)
    return losses.loss(o, rollout, scores, inner, KEY)


def recipe(name):
    return algorithms.TABLE[name](**CALLS[name])


@functools.cache
def compiled(name):
    """Return jitted (loss, gradient in logp) of a recipe's policy objective."""

    def value(logp, rollout, scores):
        return loss(recipe(name), rollout, scores.replace(logp=logp))[0]

    return jax.jit(jax.value_and_grad(value))


def evaluate(name, d):
    rollout, scores = records(d)
    value, gradient = compiled(name)(scores.logp, rollout, scores)
    return float(value), np.asarray(gradient)


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_value_and_gradient_equal_the_oracle(name):
    d = arrays()
    value, gradient = evaluate(name, d)
    f = getattr(oracle, name)
    np.testing.assert_allclose(value, f(d), rtol=2e-5, atol=2e-6)
    step = 1e-6  # central differences of the float64 oracle: error far below the tolerance
    for i, t in [(0, 0), (1, 0), (2, 0), (5, 0), (9, 0), (11, 0), (3, 2), (6, 4)]:
        up, down = ({**d, "logp": d["logp"] + s * step * _unit(i, t)} for s in (1, -1))
        np.testing.assert_allclose(gradient[i, t], (f(up) - f(down)) / (2 * step), rtol=1e-3, atol=2e-6)


def _unit(i, t):
    e = np.zeros((B, T))
    e[i, t] = 1
    return e


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_masked_and_invalid_tokens_have_exactly_no_gradient(name):
    d = arrays()
    _, gradient = evaluate(name, d)
    assert np.all(gradient[d["mask"] == 0] == 0)
    assert np.all(gradient[d["valid"] == 0] == 0)
    if name not in ("psr",):  # all of its rows may have been dropped elsewhere
        assert np.any(gradient != 0)


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_what_masked_tokens_hold_does_not_matter(name):
    d = arrays()
    dirty = dict(d)
    for field, junk in (("logp", -1e30), ("proximal", 50.0), ("ref", 1e30), ("raw", -7.0), ("value", 1e9)):
        dirty[field] = np.where(d["mask"] > 0, d[field], junk)
    (clean, g), (value, h) = evaluate(name, d), evaluate(name, dirty)
    np.testing.assert_allclose(value, clean, rtol=1e-6)
    np.testing.assert_allclose(h, g, atol=1e-7)


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_padding_width_does_not_matter(name):
    d = arrays()
    wide = {k: np.pad(v, ((0, 0), (0, 3)), constant_values=0.3) if v.ndim == 2 else v for k, v in d.items()}
    wide["mask"][:, T:] = 0
    (narrow, g), (value, h) = evaluate(name, d), evaluate(name, wide)
    np.testing.assert_allclose(value, narrow, rtol=1e-6)
    np.testing.assert_allclose(h[:, :T], g, atol=1e-7)
    assert np.all(h[:, T:] == 0)


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_row_order_and_group_names_do_not_matter(name):
    d = arrays()
    order = np.random.default_rng(1).permutation(B)
    shuffled = {k: v[order] for k, v in d.items()}
    shuffled["group"] = shuffled["group"] * 1000 - 3
    (one, g), (other, h) = evaluate(name, d), evaluate(name, shuffled)
    np.testing.assert_allclose(other, one, rtol=1e-5)
    np.testing.assert_allclose(h, g[order], atol=1e-6)


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_micro_batches_only_add(name):
    algorithm = recipe(name)
    rollout, scores = records(arrays())
    state = losses.init(algorithm)
    rollout, state = losses.transform(algorithm, rollout, state, KEY)
    for o, inner in zip(algorithm.objectives, state["objectives"], strict=True):
        prepared, inner = losses.prepare(o, rollout, scores, inner, KEY)
        whole, metrics = losses.loss(o, prepared, scores, inner, KEY)
        parts = [
            losses.loss(o, *(jax.tree.map(lambda x, a=a, b=b: x[a:b], r) for r in (prepared, scores)), inner, KEY)
            for a, b in ((0, 1), (1, 7), (7, 12))
        ]
        np.testing.assert_allclose(sum(p[0] for p in parts), whole, rtol=1e-5, atol=1e-7)
        for k, v in metrics.items():
            np.testing.assert_allclose(sum(p[1][k] for p in parts), v, rtol=1e-5, atol=1e-6)


def test_the_critic_regresses_to_its_target():
    d = arrays()
    rollout, scores = records(d)
    value, metrics = loss(algorithms.ppo(kl=0.0), rollout, scores.replace(value=scores.value + 0.5), 1)
    advantage = oracle.gae({**d, "token_reward": np.zeros((B, T))}, 1.0, 0.95)
    # returns = A + V_old; V = V_old + 0.5 is clipped to V_old + 0.2: errors (0.5 - A)^2 and (0.2 - A)^2
    expected = np.mean([0.5 * max((0.5 - a) ** 2, (0.2 - a) ** 2) for a in advantage.values()])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/value"], value)


# --- identities between recipes -----------------------------------------------------------------


def on_policy(d):
    return {**d, "proximal": d["logp"]}


def test_on_policy_clip_has_the_gradient_of_reinforce_with_the_same_advantage_and_reduction():
    d = on_policy(arrays())
    rollout, scores = records(d)
    from rljax.transforms import surrogate

    for name in ("grpo", "dapo", "dr_grpo", "ppo_clip"):
        algorithm = algorithms.TABLE[name](**CALLS[name], **({"kl": 0.0} if name == "grpo" else {}))
        o = algorithm.objectives[0]
        plain = algorithms.compose(advantage=algorithm.rollout, loss=[surrogate.reinforce()], reduce=o.reduce)

        def gradient(a):
            return jax.grad(lambda logp: loss(a, rollout, scores.replace(logp=logp))[0])(scores.logp)

        np.testing.assert_allclose(gradient(algorithm), gradient(plain), atol=1e-7)


def test_gspo_is_grpo_on_rows_of_one_token():
    d = arrays()
    d["mask"][:, 1:] = 0
    rollout, scores = records(d)
    one = loss(algorithms.gspo(low=0.2, high=0.2), rollout, scores)[0]
    other = loss(algorithms.grpo(kl=0.0), rollout, scores)[0]
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_psr_and_nsr_add_up_to_w_reinforce_under_a_sum():
    from rljax.transforms import reduce

    rollout, scores = records(arrays())

    def total(name, **arguments):
        a = algorithms.TABLE[name](entropy=0.0, **arguments)
        o = a.objectives[0]
        summed = algorithms.compose(
            advantage=a.rollout, loss=o.loss, reduce=reduce.sum_over_tokens(), prepare=o.prepare
        )
        return loss(summed, rollout, scores)[0]

    np.testing.assert_allclose(total("psr") + total("nsr"), total("w_reinforce", positive=1.0), rtol=1e-5)


def test_numeric_arguments_may_be_traced():
    rollout, scores = records(arrays())
    swept = jax.vmap(lambda low: loss(algorithms.grpo(low=low, kl=low), rollout, scores)[0])(jnp.array([0.05, 0.2]))
    for value, low in zip(swept, (0.05, 0.2), strict=True):
        np.testing.assert_allclose(value, loss(algorithms.grpo(low=low, kl=low), rollout, scores)[0], rtol=1e-6)


# --- exact enumeration: all sequences of a tiny policy ------------------------------------------

V, LENGTH = 3, 2
SEQUENCES = jnp.array([(a, b) for a in range(V) for b in range(V)])
REWARD = jnp.array([1, 0, 0, 1, 1, 0, 0, 0, 1.0])


def logp_of(theta, sequences):
    """Return [n, 2] log-probs of a policy with its own logits after each first token."""
    first = jax.nn.log_softmax(theta[0])[sequences[:, 0]]
    second = jax.nn.log_softmax(theta[1:], axis=1)[sequences[:, 0], sequences[:, 1]]
    return jnp.stack([first, second], axis=1)


def theta_of(seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(V + 1, V)), jnp.float32)


def expected_gradient(algorithm, samples, theta, ref):
    """Return sum over all groups of P(group) * gradient of the group's loss."""
    grid = np.stack(np.meshgrid(*[np.arange(len(SEQUENCES))] * samples, indexing="ij"), -1).reshape(-1, samples)

    def one(theta, rows):
        logp = logp_of(theta, SEQUENCES[rows])
        old = jax.lax.stop_gradient(logp)
        rollout = types.Rollout(
            mask=jnp.ones((samples, LENGTH)),
            reward=REWARD[rows],
            group=jnp.zeros(samples, jnp.int32),
            ref_logp=logp_of(ref, SEQUENCES[rows]),
            raw_logp=old,
        )
        return loss(algorithm, rollout, types.Scores(logp=logp))[0]

    weight = jnp.exp(jnp.sum(logp_of(theta, SEQUENCES), axis=1))[grid].prod(axis=1)
    gradients = jax.vmap(jax.grad(one), in_axes=(None, 0))(theta, jnp.asarray(grid))
    return jnp.einsum("n,nij->ij", weight, gradients)


def expected_return(theta):
    return jnp.sum(jnp.exp(jnp.sum(logp_of(theta, SEQUENCES), axis=1)) * REWARD)


def kl_divergence(theta, ref):
    p, q = logp_of(theta, SEQUENCES).sum(axis=1), logp_of(ref, SEQUENCES).sum(axis=1)
    return jnp.sum(jnp.exp(p) * (p - q))


@pytest.mark.parametrize(
    ("call", "samples", "scale"),
    [
        (lambda: algorithms.reinforce(), 1, 1.0),
        (lambda: algorithms.rloo(), 2, 1.0),
        (lambda: algorithms.rloo(), 3, 1.0),
        # centring by a mean that holds the row itself shrinks by (G - 1) / G; the fixed length divides by 2
        (lambda: algorithms.dr_grpo(length=2), 2, 1 / 4),
        # the only group of two with spread has std (ddof 1) sqrt(1/2), so GRPO is dr_grpo over that, mean of 2 tokens
        (lambda: algorithms.grpo(kl=0.0, epsilon=1e-12), 2, 1 / 4 / np.sqrt(0.5)),
    ],
)
def test_expected_gradient_is_the_true_gradient_or_its_known_multiple(call, samples, scale):
    theta, ref = theta_of(0), theta_of(1)
    got = expected_gradient(call(), samples, theta, ref)
    np.testing.assert_allclose(got, -scale * jax.grad(expected_return)(theta), atol=2e-6)


def test_kl_in_the_reward_has_the_gradient_of_the_sequence_kl():
    theta, ref = theta_of(2), theta_of(3)
    got = expected_gradient(algorithms.rloo(kl=0.3), 2, theta, ref)
    want = -jax.grad(lambda x: expected_return(x) - 0.3 * kl_divergence(x, ref))(theta)
    np.testing.assert_allclose(got, want, atol=3e-6)
