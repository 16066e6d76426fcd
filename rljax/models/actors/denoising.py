"""Denoising: an action as the end of a chain of Gaussian steps along a flow."""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax.language import settings
from rljax.language.settings import setting
from rljax.models.actors.distributions import Gaussian
from rljax.transforms import ops
from rljax.types import Array, Key, Range

Steps = Annotated[int, Range(0, 1000)]


@dataclasses.dataclass(frozen=True)
class Denoising:
    """How actions are denoised from x_0 ~ N(0, I) along a flow v(x, t): K steps of dt = 1 / K, at t = k / K."""

    steps: Steps = setting(0, "K, the steps in which an action is denoised from N(0, I); 0: it is drawn at once.")
    noise: Literal["learned", "sde", "renoised"] = setting(
        "learned", "Of a step: a learned deviation, that of the SDE with the flow's marginals, or noise added anew."
    )
    log_std: Annotated[float, Range(-10, 10)] = setting(
        0.0, "Log deviation: of learned noise at first, of the SDE's a, or of the last step of 'renoised'."
    )
    first: Steps = setting(0, "Steps before this one add no noise and are not trained.")
    last: Steps = setting(0, "Steps from this one on add no noise and are not trained; 0: all do.")
    split: Steps = setting(0, "Steps before this one have a network of their own; 0: one network has all.")
    positions: Literal["action", "step"] = setting(
        "action", "What a position of a row is, with its ratio: an action with its whole chain, or a step of one."
    )
    shared: Steps = setting(0, "States of the chain, the noise x_0 first, that the samples of a prompt have in common.")

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or has no effect."""
        settings.check(self)
        plain = {f.name: f.default for f in dataclasses.fields(self)}
        changed = [name for name, value in plain.items() if getattr(self, name) != value]
        if changed and not self.steps:
            raise ValueError(f"{changed[0]}={getattr(self, changed[0])!r}: has no effect with steps=0. Remove it.")
        for name in ("first", "last", "shared", "split"):
            if getattr(self, name) > self.steps:
                raise ValueError(f"{name}={getattr(self, name)}: must be at most steps={self.steps}")
        if self.positions == "action" and (self.first or self.last):
            raise ValueError("first, last: steps without noise have no density; set positions='step'")
        if self.steps and not any(self.noisy):
            raise ValueError(f"first={self.first}: must be below last={self.last}, so that a step adds noise")

    @property
    def noisy(self) -> tuple[bool, ...]:
        """Whether each of the K steps adds noise."""
        return tuple(self.first <= step < (self.last or self.steps) for step in range(self.steps))

    def step(self, v: Array, x: Array, step: Array, log_std: Array | None) -> Gaussian:
        """Return the distribution of the state after a step.

        "learned": N(x + v dt, std_k^2), Flow-Noise. "sde": N(x + (v + g^2 s / 2) dt, g^2 dt) with the score s = (t v -
        x) / (1 - t) of a flow from N(0, I) and g^2 = a^2 (1 - t), which has the marginals of dx = v dt as dt goes to
        0: Flow-SDE (pi_RL, arXiv 2510.25889), Flow-GRPO (arXiv 2505.05470), whose g^2 = a^2 (1 - t) / t is infinite at
        the start. "renoised": N(t' f, (1 - t')^2) at t' = t + dt with f = x + (1 - t) v, the end of the flow as it is
        seen from x: sampling of a consistency model, which RLCM (arXiv 2404.03673) trains; its last step is N(f, a^2).
        Without noise all three are x + v dt.

        Args:
          v: ``[..., A]``, of the network.
          x: ``[..., A]``, states before the step.
          step: ``[...]`` int32, its number k.
          log_std: ``[K, A]``, learned; None: of the other kinds.

        Returns:
          Over states ``[..., A]``; the deviation of a step without noise is 1 and means nothing.
        """
        dt = 1.0 / self.steps
        t = jnp.broadcast_to((step * dt)[..., None], x.shape)
        noisy = jnp.broadcast_to(jnp.asarray(self.noisy)[step][..., None], x.shape)
        straight = x + v * dt
        if self.noise == "learned":
            mean, log_std = straight, ops.given(log_std, "denoising: no learned noise")[step]
        elif self.noise == "sde":
            variance = np.exp(2.0 * self.log_std)
            mean = x + (v + 0.5 * variance * (t * v - x)) * dt
            log_std = self.log_std + 0.5 * jnp.log((1.0 - t) * dt)
        else:
            left = jnp.where(t > 1.0 - 1.5 * dt, np.exp(self.log_std), 1.0 - t - dt)
            mean, log_std = (t + dt) * (x + (1.0 - t) * v), jnp.log(left)
        return Gaussian(jnp.where(noisy, mean, straight), jnp.where(noisy, log_std, 0.0))

    def demonstrated(self, action: Array, keys: Key) -> Array:
        """Return chains to demonstrated actions a; their likelihood fits v(x, t) to E[(a - x) / (1 - t) | x].

        Its steps are those of v = (a - x) / (1 - t), with their noise unless it is learned. That chain is straight, x_k
        = (1 - t) z + t a, and its likelihood with deviations s_k is flow matching: -log p = sum_k |v(x_k, t) - (a -
        z)|^2 / (2 K^2 s_k^2) + log s_k + constant.

        Args:
          action: ``[B, A]`` in [-1, 1].
          keys: ``[B]``, of the noise.

        Returns:
          ``[B, K + 1, A]``.
        """
        steps, silent = self.steps, None if self.noise != "learned" else jnp.zeros((self.steps, action.shape[-1]))

        def normal(step: Array | int) -> Array:
            each = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
            return jax.vmap(lambda key: jax.random.normal(key, action.shape[1:]))(each)

        def move(x: Array, step: Array) -> tuple[Array, Array]:
            given = self.step((action - x) / (1.0 - step / steps), x, jnp.broadcast_to(step, x.shape[:1]), silent)
            drawn = given.mean + jnp.exp(given.log_std) * normal(step)
            x = jnp.where(jnp.asarray(self.noisy)[step] & (silent is None), drawn, given.mean)
            return x, x

        first = normal(steps)
        _, states = jax.lax.scan(move, first, jnp.arange(steps))
        return jnp.concatenate([first[:, None], jnp.moveaxis(states, 0, 1)], axis=1)

    def stored(self, chain: Array) -> Array:
        """Return chains ``[B, K + 1, A]`` as rows store them: whole, or both states of each step, ``[B, K, 2, A]``."""
        if self.positions == "action":
            return chain
        return jnp.stack([chain[:, :-1], chain[:, 1:]], axis=2)
