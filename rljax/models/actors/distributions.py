"""Distributions of actions. Log-probabilities are in nats, of densities where actions are numbers."""

import math
from typing import Protocol, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rljax.transforms import ops
from rljax.types import Array, Key

_NODES = np.polynomial.hermite.hermgauss(32)  # of the expectation over a Gaussian
_ILLEGAL = -1e30  # logit of an action that is not allowed


class Distribution(Protocol):
    """A distribution of actions at each of [...] states, as rows are scored under it.

    Those that are drawn at once, ``Categorical`` and ``Gaussian``, also have ``draw``, ``mode`` and ``acted``.
    """

    def tempered(self, temperature: Array | float) -> Self:
        """Return the distribution with density proportional to p^(1 / temperature)."""
        ...

    def logp(self, taken: Array) -> Array:
        """Return log p of stored actions, [...]."""
        ...

    def entropy(self) -> Array:
        """Return the entropy, [...]."""
        ...

    def square_prob(self) -> Array:
        """Return the integral, or the sum, of p^2, [...]."""
        ...

    def divergence(self, name: str, other: Self) -> Array:
        """Return the divergence from another distribution of the kind, [...]; names are those of ``ops.divergence``.

        Raises:
          ValueError: it is unknown, or has no closed form.
        """
        ...


class Categorical(flax.struct.PyTreeNode):
    """p_a = exp(z_a) / sum_b exp(z_b) over the actions that are allowed."""

    logits: Array  # [..., A]

    @classmethod
    def of(cls, logits: Array, legal: Array | None = None) -> "Categorical":
        """Return the distribution over actions where ``legal`` [..., A] is True; None: over all."""
        return cls(logits if legal is None else jnp.where(legal, logits, _ILLEGAL))

    def every_logp(self) -> Array:
        """Return log p of all actions, [..., A]."""
        return jax.nn.log_softmax(self.logits)

    def tempered(self, temperature: Array | float) -> "Categorical":
        """Divide the logits by the temperature."""
        return Categorical(self.logits / temperature)

    def draw(self, key: Key) -> Array:
        """Return an action, int32 scalar."""
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> Array:
        """Return the most probable action, the first among equals."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def acted(self, taken: Array) -> Array:
        """Return the action."""
        return taken

    def logp(self, taken: Array) -> Array:
        """Return log p_a for actions ``[...]`` int32."""
        return jnp.take_along_axis(self.every_logp(), taken[..., None], axis=-1)[..., 0]

    def entropy(self) -> Array:
        """Return - sum_a p_a log p_a."""
        logp = self.every_logp()
        return -jnp.sum(jnp.exp(logp) * logp, axis=-1)

    def log_normaliser(self) -> Array:
        """Return log sum_a exp(z_a)."""
        return jax.nn.logsumexp(self.logits, axis=-1)

    def square_prob(self) -> Array:
        """Return sum_a p_a^2."""
        return jnp.sum(jnp.exp(2.0 * self.every_logp()), axis=-1)

    def divergence(self, name: str, other: "Categorical") -> Array:
        """Return ``ops.divergence`` of the two."""
        return ops.divergence(name, self.every_logp(), other.every_logp())


class Gaussian(flax.struct.PyTreeNode):
    """Independent Gaussians u_i ~ N(mean_i, std_i^2); the action is u, or with ``squash`` tanh(u), whose density it is.

    Rows store u, so that the log-prob of an action near the bounds loses no digits. Divergences are those of u, since
    tanh is one-to-one.
    """

    mean: Array  # [..., A]
    log_std: Array  # [..., A]
    squash: bool = flax.struct.field(pytree_node=False, default=False)

    def tempered(self, temperature: Array | float) -> "Gaussian":
        """Multiply the variances of u by the temperature."""
        return self.replace(log_std=self.log_std + 0.5 * jnp.log(temperature))

    def draw(self, key: Key) -> Array:
        """Return u, ``[A]``."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> Array:
        """Return the mean of u."""
        return self.mean

    def acted(self, taken: Array) -> Array:
        """Return u, clipped to [-1, 1], or tanh(u)."""
        return acted("gaussian", self.squash, taken)

    def logp(self, taken: Array) -> Array:
        """Return sum_i log N(u_i), with ``squash`` minus sum_i log(1 - tanh(u_i)^2)."""
        z = (taken - self.mean) * jnp.exp(-self.log_std)
        logp = -0.5 * z**2 - self.log_std - 0.5 * math.log(2.0 * math.pi)
        return jnp.sum(logp - _slope(taken) if self.squash else logp, axis=-1)

    def entropy(self) -> Array:
        """Return sum_i log(std_i sqrt(2 pi e)), with ``squash`` plus E sum_i log(1 - tanh(u_i)^2) by quadrature."""
        each = self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)
        if self.squash:
            nodes, weights = (jnp.asarray(x, each.dtype) for x in _NODES)
            reach = math.sqrt(2.0) * jnp.exp(self.log_std)[..., None]
            u = self.mean[..., None] + reach * jnp.broadcast_to(nodes, (*each.shape, nodes.size))
            each = each + _slope(u) @ weights / math.sqrt(math.pi)
        return jnp.sum(each, axis=-1)

    def square_prob(self) -> Array:
        """Return prod_i 1 / (2 std_i sqrt(pi)); ValueError with ``squash``."""
        if self.squash:
            raise ValueError("square_prob: has no closed form for actions tanh(u)")
        return jnp.exp(-jnp.sum(self.log_std + 0.5 * math.log(4.0 * math.pi), axis=-1))

    def divergence(self, name: str, other: "Gaussian") -> Array:
        """Return KL(p || q) = sum_i log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2, or one made of it.

        "alpha_a" and "hellinger" follow from the integral of p^a q^(1 - a), which is infinite where a / s_p^2 + (1 - a)
        / s_q^2 is not above 0.
        """
        check_closed(name)
        if name in ("forward_kl", "alpha_0.0", "alpha_0"):
            return other.divergence("reverse_kl", self)
        if name in ("reverse_kl", "alpha_1.0", "alpha_1"):
            ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
            shift = ((self.mean - other.mean) * jnp.exp(-other.log_std)) ** 2
            return jnp.sum(other.log_std - self.log_std + 0.5 * (ratio + shift - 1.0), axis=-1)
        if name == "hellinger":
            return 1.0 - jnp.exp(self._overlap(other, 0.5))
        alpha = float(name.removeprefix("alpha_"))
        return (1.0 - jnp.exp(self._overlap(other, alpha))) / (alpha * (1.0 - alpha))

    def _overlap(self, other: "Gaussian", a: float) -> Array:
        """Return the log of the integral of p^a q^(1 - a)."""
        p, q = jnp.exp(-2.0 * self.log_std), jnp.exp(-2.0 * other.log_std)  # precisions
        both = a * p + (1.0 - a) * q
        spread = a * -self.log_std + (1.0 - a) * -other.log_std - 0.5 * jnp.log(jnp.maximum(both, 0.0))
        far = 0.5 * a * (1.0 - a) * p * q / both * (self.mean - other.mean) ** 2
        return jnp.sum(jnp.where(both > 0, spread - far, jnp.inf), axis=-1)


def check_closed(name: str) -> None:
    """Raise ValueError if a divergence has no closed form between Gaussians."""
    alpha = name.startswith("alpha_") and ops.is_divergence(name)
    if not alpha and name not in ("reverse_kl", "forward_kl", "hellinger"):
        raise ValueError(f"divergence {name!r}: has no closed form between Gaussians; choose reverse_kl, forward_kl, "
                         "hellinger or alpha_ and a number")  # fmt: skip


class Chain(flax.struct.PyTreeNode):
    """A chain of states, each a Gaussian given the one before; the last one is the action.

    Rows store the states, the first, which is noise, too. Entropies and divergences are the sums over the steps, given
    the states that were drawn: their means over chains are the chain's.
    """

    steps: Gaussian  # of the states after the first, [..., K * A]

    @classmethod
    def of(cls, each: Gaussian) -> "Chain":
        """Return the chain of K distributions ``[..., K, A]``, of each state given the one before."""
        return cls(Gaussian(_joined(each.mean), _joined(each.log_std)))

    def tempered(self, temperature: Array | float) -> "Chain":
        """Multiply the variances of all steps by the temperature."""
        return Chain(self.steps.tempered(temperature))

    def logp(self, taken: Array) -> Array:
        """Return sum_k log N(x_{k+1}; mean_k, std_k^2) of chains ``[..., K + 1, A]``."""
        return self.steps.logp(_joined(taken[..., 1:, :]))

    def entropy(self) -> Array:
        """Return the sum of the entropies of the steps."""
        return self.steps.entropy()

    def square_prob(self) -> Array:
        """Return the product over the steps."""
        return self.steps.square_prob()

    def divergence(self, name: str, other: "Chain") -> Array:
        """Return the divergence of the steps together, given the states before them."""
        return self.steps.divergence(name, other.steps)


def _joined(x: Array) -> Array:
    """Return ``[..., K, A]`` as ``[..., K * A]``."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def acted(kind: str, squash: bool, taken: Array) -> Array:
    """Return stored actions as the world reads them: tanh(u), or u, of a chain the last state, clipped to [-1, 1]."""
    if kind == "denoiser":
        taken = taken[..., -1, :]
    return jnp.tanh(taken) if squash and kind == "gaussian" else jnp.clip(taken, -1.0, 1.0)


def _slope(u: Array) -> Array:
    """Return log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
