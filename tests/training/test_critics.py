"""Critics: values over bins, their metrics, and values learned in the loop against exact ones."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, environments, types
from rljax.config import resolve
from rljax.models.checkpoints import weights
from rljax.run import programs
from rljax.training import states
from rljax.training.learning import row_metrics
from rljax.transforms import define, ops, surrogate
from tests.support import tiny

ONE = jax.devices()[:1]


# --- values over bins -------------------------------------------------------------------------------


def target(returns, low, high, bins, sigma):
    """Return the share of each bin, in loops: arXiv 2403.03950, section 3.1."""
    width, y = (high - low) / (bins - 1), min(max(returns, low), high)
    center = [low + k * width for k in range(bins)]
    if not sigma:
        return [max(0.0, 1 - abs(y - c) / width) for c in center]

    def below(x):
        return 0.5 * (1 + math.erf((x - y) / (math.sqrt(2) * sigma * width)))

    mass = [below(c + width / 2) - below(c - width / 2) for c in center]
    return [m / (below(high + width / 2) - below(low - width / 2)) for m in mass]


def histogram_loss(logits, returns, **arguments):
    """Return the term and its metric outside of a chain, for [B, T, bins] and [B, T]."""
    piece = surrogate.value_histogram(**arguments)
    r = types.Rollout(jnp.ones_like(returns), returns[:, 0], jnp.zeros(len(returns), int), returns=returns)
    loss = piece.apply(types.Loss(), r, types.Scores(value_logits=logits), piece.init(), jax.random.key(0))
    return loss.terms["value"], loss.metrics["outside"]


@pytest.mark.parametrize("sigma", [0.0, 0.75])
def test_the_loss_over_bins_is_the_cross_entropy_of_the_target(sigma):
    r = np.random.default_rng(0)
    low, high, bins = -0.5, 1.5, 9
    logits, returns = r.normal(size=(3, 4, bins)), r.uniform(-0.7, 1.7, size=(3, 4))
    returns[0] = [0.0, 1.0, 0.3, 1.5]
    share = np.array([[target(y, low, high, bins, sigma) for y in row] for row in returns])
    q = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    with jax.enable_x64(True):
        arguments = {"over": (low, high), "bins": bins, "sigma": sigma}

        def total(z):
            term, outside = histogram_loss(z, jnp.asarray(returns), **arguments)
            return jnp.sum(term), (term, outside)

        gradient, (term, outside) = jax.grad(total, has_aux=True)(jnp.asarray(logits))
    np.testing.assert_allclose(term, -np.sum(share * np.log(q), axis=-1), rtol=1e-9)
    np.testing.assert_allclose(gradient, q - share, atol=1e-9)
    np.testing.assert_array_equal(outside, (returns < low) | (returns > high))
    # the mean of the target is the return, away from the ends of the range
    inner = np.linspace(low + 3 * sigma * 0.25, high - 3 * sigma * 0.25, 23)
    mean = [np.dot(target(y, low, high, bins, sigma), np.linspace(low, high, bins)) for y in inner]
    np.testing.assert_allclose(mean, inner, atol=1e-3 * 0.25 if sigma else 1e-12)


@pytest.mark.parametrize(("over", "bins"), [((1.0, 0.0), 5), ((0.0, 0.0), 5), ((0.0, 1.0), 1)])
def test_bins_that_cannot_be_are_refused(over, bins):
    with pytest.raises(ValueError, match=r"value_histogram: over=.* must be increasing, and bins=.* at least 2"):
        surrogate.value_histogram(over, bins)


@pytest.mark.parametrize("name", ["vc_ppo", "vapo"])
def test_recipes_with_a_range_have_the_critic_of_ppo(name):
    plain, ranged = (algorithms.TABLE[name](value_range=over).objectives for over in (None, (-0.25, 1.25)))
    critic = algorithms.TABLE["ppo"](value_range=(-0.25, 1.25)).objectives[1]
    assert [p.spec for p in ranged[1].loss] == [p.spec for p in critic.loss] != [p.spec for p in plain[1].loss]
    assert [p.spec for p in ranged[0].loss] == [p.spec for p in plain[0].loss]


def test_phases_with_different_bins_are_refused():
    c = tiny.phases("ppo(kl=0.0, value_range=(-0.5, 1.5))")
    c.phase.warm.algorithm = "critic_warmup(value_range=(0.0, 2.0))"
    with pytest.raises(ValueError, match=r"values of 'value' are over 51 bins in \(-0.5, 1.5\) in phase 'main'"):
        resolve.phases(c)


def test_moments_of_a_critic_go_on_where_an_actor_joins_it():
    """The state of an optimizer belongs to the module that it trains; of a module that is new, it is fresh."""
    c = tiny.phases("ppo(kl=0.0)", phase__main__reset_optimizer=False, phase__warm__warmup=0, phase__main__warmup=0)
    c.phase.warm.algorithm = "critic_warmup()"
    first, second = programs.build(c, devices=ONE).steps
    assert [o.module for o in second.setup.algorithm.objectives] == ["policy", "value"]
    assert second.carried.optimizer == (None, 0) and first.setup.algorithm.objectives[0].module == "value"
    assert len(second.notes) == 1 and "'policy' is reset although reset_optimizer=False" in second.notes[0]
    previous = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), first.shape)
    policy, value = states.begin(second.setup, second.carried, previous, jax.random.key(0)).opt_state
    assert all(np.all(x == 1) for x in jax.tree.leaves(value)) and not any(np.any(x) for x in jax.tree.leaves(policy))


@pytest.mark.full
def test_the_head_of_the_critic_follows_its_objective():
    """A critic over bins has a logit for each and starts at the middle of its range, also on the policy's trunk."""
    for call, trunk, bins in [
        ("ppo(kl=0.0, value_range=(-0.5, 1.5))", "", 51),
        ("ppo(kl=0.0, value_range=(-0.5, 1.5))", "policy", 51),
        ("ppo(kl=0.0)", "", 0),
    ]:
        network = programs.build(tiny.config(call, module__value__trunk=trunk), devices=ONE).model("value")
        params = network.init(jax.random.key(0))
        assert params["scalar"].shape == ((bins, 32) if bins else (32,))
        np.testing.assert_allclose(network.scalar(params, jnp.ones((2, 32))), [0.5 if bins else 0.0] * 2, atol=1e-6)


def test_a_critic_over_bins_is_written_and_read_again(tmp_path):
    network = programs.build(tiny.config("ppo(kl=0.0, value_range=(-0.5, 1.5))"), devices=ONE).model("value")
    params = network.init(jax.random.key(0))
    params["scalar"] = jax.random.normal(jax.random.key(1), params["scalar"].shape)
    weights.save(str(tmp_path / "critic"), network.architecture, params)
    again = weights.load(str(tmp_path / "critic"), network.architecture)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    with pytest.raises(ValueError, match=r"score.weight"):
        weights.check(str(tmp_path / "critic"), dataclasses.replace(network.architecture, bins=None))


# --- metrics ----------------------------------------------------------------------------------------


def test_explained_variance_and_bias_are_those_of_loops():
    r = np.random.default_rng(1)
    value, returns = r.normal(size=(5, 7)), r.normal(size=(5, 7))
    mask = (r.random((5, 7)) < 0.7) * 1.0
    mask[2] = 0
    here = mask > 0
    errors = {"early": [], "middle": [], "late": []}
    for i in range(5):
        at = [t for t in range(7) if here[i, t]]
        for number, t in enumerate(at):
            errors[("early", "middle", "late")[3 * number // len(at)]].append(value[i, t] - returns[i, t])
    want = {f"value/bias_{name}": np.mean(x) for name, x in errors.items()}
    want["value/explained_variance"] = 1 - np.var((returns - value)[here]) / np.var(returns[here])
    got = row_metrics.of_critic(*(jnp.asarray(x, jnp.float32) for x in (value, returns, mask)))
    assert {*got} == {*want}
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-5, atol=1e-6, err_msg=name)
    same = row_metrics.of_critic(jnp.asarray(value), jnp.ones_like(mask), jnp.asarray(mask))
    assert same["value/explained_variance"] == 0


# --- exact values -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Letters:
    """One prompt and up to three tokens, all of which decide the reward."""

    tokenizer: Any = None
    name = "letters"
    prompt_length, completion_length = 2, 3
    host, parts = False, ("probability",)

    def corpus(self):
        """Return the text of the task."""
        return iter(("ab",))

    def bind(self, tokenizer):
        """Return a copy with the tokenizer."""
        return dataclasses.replace(self, tokenizer=tokenizer)

    def size(self, split):
        """Return 1."""
        return 1

    def prompts(self, index, split):
        """Return the prompt."""
        token = jnp.tile(jnp.asarray([self.tokenizer.encode("ab")], jnp.int32), (index.shape[0], 1))
        return types.Prompts(token, jnp.ones(token.shape), index)

    def text(self, index, split):
        """Return the prompt as text."""
        return "ab"

    def verify(self, index, split, token, mask):
        """Judge completions."""
        reward = reward_of(token, mask > 0, jnp) * 1.0
        return types.Verdict(reward, reward.astype(jnp.int32), {"probability": reward})


@environments.task
def letters():
    """Return the task, for configs."""
    return Letters()


def reward_of(token, written, library):
    return library.sum(library.where(written, token - 3, 0), axis=1) > 1


@define.reduce(needs=define.reads("probability"))
def expectation(rollout, mask):
    """Weigh each row by its probability, so that the loss is its exact expectation."""
    return mask * ops.part(rollout, "probability")[:, None]


def every_row(step, params):
    """Return all completions as a rollout, their probabilities, and V* before each token by brute force, [B, T]."""
    task, network = step.setup.task, step.setup.networks["policy"]
    vocabulary, stop = network.architecture.vocabulary, task.tokenizer.eos
    of_length = {n: itertools.product(range(vocabulary), repeat=n) for n in (1, 2, 3)}
    every = [y for n, all_of in of_length.items() for y in all_of if stop not in y[:-1] and (n == 3 or y[-1] == stop)]
    token = np.array([[*y, *(0,) * (3 - len(y))] for y in every], np.int32)
    mask = np.array([[t < len(y) for t in range(3)] for y in every])
    index = jnp.zeros(len(every), jnp.int32)
    prompt = task.prompts(index, "train")
    rows = types.Rollout(
        jnp.asarray(mask, jnp.float32),
        jnp.asarray(reward_of(token, mask, np), jnp.float32),
        index,
        types.Context(prompt.token, prompt.mask),
        types.Action(jnp.asarray(token)),
        index=index,
        outcome=index,
    )
    logp = np.asarray(step.score("policy", params, rows, types.Needs()).logp, np.float64)
    p = np.exp(np.sum(np.where(mask, logp, 0.0), axis=1))
    np.testing.assert_allclose(p.sum(), 1, atol=1e-5)
    value = np.zeros(token.shape)
    for i, t in np.argwhere(mask):
        alike = np.array([y[:t] == every[i][:t] for y in every])
        value[i, t] = np.sum(p * rows.reward * alike) / np.sum(p * alike)
    return rows.replace(parts={"probability": jnp.asarray(p, jnp.float32)}), p, value


@pytest.mark.full
@pytest.mark.parametrize("call", ["critic_warmup()", "critic_warmup(value_range=(-0.25, 1.25))"])
def test_a_critic_learns_the_exact_values_of_the_policy(call):
    """Its loss is the expectation over all completions, so that its minimum is V*, whatever the policy."""
    c = tiny.config(call, task="tests.training.test_critics.letters()")
    c.phase.main.optimizer = "adamw(learning_rate=3e-3, weight_decay=0.0)"
    c.batch.update({"prompts": 7, "samples": 37})
    c.learner.epochs = 120
    c.log.rollout_rows = 0
    c.seam.reduce = "tests.training.test_critics.expectation()"
    step = programs.build(c, devices=ONE).steps[0]
    key = jax.random.key(0, impl="threefry2x32")
    state = step.begin(None, key)
    rows, p, want = every_row(step, state.params["policy"])
    mask = np.asarray(rows.mask)
    weight = p[:, None] * mask / np.sum(p[:, None] * mask)
    assert np.sqrt(np.sum(weight * (want - np.sum(weight * want)) ** 2)) > 0.2  # values differ between states
    for _ in range(2):
        state, metrics = step.update(state, rows, key)
    got = np.asarray(step.score("value", state.params["value"], rows, types.Needs(value=True)).value)
    error = np.where(mask > 0, got - want, 0.0)
    assert np.sqrt(np.sum(weight * error**2)) < 0.03
    assert np.abs(error)[weight > 0.005].max() < 0.1
    # of the rows once each, before the second update: 1 - Var(R - V) / Var(R), R the reward at every token
    here, target = mask > 0, np.asarray(rows.reward)[:, None] * mask
    best = 1 - np.var((target - want)[here]) / np.var(target[here])
    np.testing.assert_allclose(metrics["value/explained_variance"], best, atol=0.02)
