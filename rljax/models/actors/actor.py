"""An actor: a network with a distribution of actions, or with the value of a state."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.models.actors import distributions
from rljax.models.actors.mlp import Mlp
from rljax.transforms import modules, ops
from rljax.types import Array, Key, Tree

_SCALE = {"logits": 0.01, "scalar": 1.0}  # of the last layer at the start
_SCORED = ("entropy", "square_prob", "value", "value_logits")


class Motion(flax.struct.PyTreeNode):
    """The actions of trajectories, in place of tokens: ``Rollout.motion``. Behind the last action stands the state."""

    observation: Array  # [B, T, O] float32, before each action; behind the last one, of the state that follows
    taken: Array  # [B, T] int32, or [B, T, A] float32, as the distribution stores them
    legal: Array | None = None  # [B, T, A] bool, the actions that are allowed; None: all
    state: Tree | None = None  # [B, ...] of the episodes, which a later step continues


class Drawn(NamedTuple):
    """Actions of B states."""

    taken: Array  # [B] int32 or [B, A], as rows store them
    action: Array  # the same as the world reads them
    logp: Array  # [B]
    entropy: Array  # [B]


@dataclasses.dataclass(frozen=True)
class Actor:
    """A network over observations as pure functions. Hashable, and equal when built alike: safe to close over in jit.

    Attributes:
      architecture: of the network.
      observation: O, how many numbers are observed.
      kind: of the distribution of actions.
      actions: A, the number of actions, or how many numbers an action has.
      output: "logits", a distribution of actions; or "scalar", a value.
      bins: first center, last center and number of the bins of a value that is an expectation; None: a plain number.
    """

    architecture: Mlp
    observation: int
    kind: Literal["categorical", "gaussian"]
    actions: int
    output: Literal["logits", "scalar"] = "logits"
    bins: tuple[float, float, int] | None = None

    @property
    def axes(self) -> Tree:
        """A tree like the parameters; each leaf is a tuple of None for each dimension: they are replicated."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        return jax.tree.map(lambda x: (None,) * x.ndim, shapes)

    @property
    def _outputs(self) -> int:
        return self.actions if self.output == "logits" else 1 if self.bins is None else self.bins[2]

    def init(self, key: Key) -> Tree:
        """Return random parameters: nested dictionaries of arrays."""
        params = self.architecture.init(key, self.observation, self._outputs, _SCALE[self.output])
        if self.output == "logits" and self.kind == "gaussian":
            params["log_std"] = jnp.full(self.actions, self.architecture.log_std)
        return params

    def policy(self, params: Tree, observation: Array, legal: Array | None = None) -> distributions.Distribution:
        """Return the distribution of actions in states ``[..., O]``, of which ``legal`` ``[..., A]`` are allowed."""
        out = self.architecture.apply(params, observation)
        if self.kind == "categorical":
            return distributions.Categorical.of(out, legal)
        log_std = jnp.broadcast_to(params["log_std"], out.shape)
        return distributions.Gaussian(out, log_std, self.architecture.squash)

    def draw(
        self, params: Tree, observation: Array, keys: Key, legal: Array | None = None, temperature: Array | float = 1.0
    ) -> Drawn:
        """Draw an action in each state, or take the most probable one.

        Args:
          params: from ``init``.
          observation: ``[B, O]``.
          keys: ``[B]``.
          legal: ``[B, A]`` bool, the actions that are allowed; None: all.
          temperature: of the distribution; 0: the most probable action, with the scores of temperature 1.

        Returns:
          The actions.
        """
        plain = self.policy(params, observation, legal)
        if isinstance(temperature, float | int) and temperature <= 0:
            taken = plain.mode()
            return Drawn(taken, plain.acted(taken), jnp.zeros(taken.shape[0]), plain.entropy())
        policy = plain.tempered(temperature)
        taken = jax.vmap(lambda p, key: p.draw(key))(policy, keys)
        return Drawn(taken, policy.acted(taken), policy.logp(taken), policy.entropy())

    def score(
        self,
        params: Tree,
        rows: types.Rollout,
        needs: types.Needs,
        *,
        temperature: Array | float = 1.0,
        reference: Tree | None = None,
        teachers: Mapping[str, tuple["Actor", Tree]] | None = None,
    ) -> types.Scores:
        """Score rows, as ``scores.scoring.score`` does rows of tokens.

        Args:
          params: from ``init``, differentiated.
          rows: B rows of T positions with ``motion``.
          needs: what to compute beyond log-probs.
          temperature: of the distribution.
          reference: parameters of the reference policy, for exact divergences; not differentiated.
          teachers: actor and parameters of modules by name, for exact divergences from them.

        Returns:
          Scores ``[B, T]`` float32; ``logp`` is 0 where the mask is 0. A critic has no ``logp``.

        Raises:
          ValueError: a score that the kind of actor does not have.
        """
        self.check(needs)
        motion = ops.given(rows.motion, "score: the rows have no motion")
        if self.output == "scalar":
            return self._value(params, motion.observation)
        policy = self.policy(params, motion.observation, motion.legal).tempered(temperature)
        fields: dict[str, Any] = {name: getattr(policy, name)() for name in _SCORED[:2] if getattr(needs, name)}
        others = {modules.REFERENCE: (self, reference), **(teachers or {})}
        divergence = {}
        for full in sorted(needs.divergence):
            name, (named, *more), _ = modules.parts(full)
            if more:
                raise ValueError(f"needs.divergence={full!r}: a mixture of modules, which actors do not have")
            actor, tree = others[named]
            other = actor.policy(jax.lax.stop_gradient(tree), motion.observation, motion.legal)
            divergence[full] = policy.divergence(name, other.tempered(temperature))
        logp = jnp.where(rows.mask > 0, policy.logp(motion.taken), 0.0)
        return types.Scores(logp=logp, divergence=divergence, **fields)

    def _value(self, params: Tree, observation: Array) -> types.Scores:
        out = self.architecture.apply(params, observation)
        if self.bins is None:
            return types.Scores(value=out[..., 0])
        first, last, count = self.bins
        return types.Scores(value=jax.nn.softmax(out) @ jnp.linspace(first, last, count), value_logits=out)

    def check(self, needs: types.Needs) -> None:
        """Raise ValueError if the actor does not have what is needed."""
        if missing := [name for name in needs.requested if name not in _SCORED]:
            words = types.SCORES[missing[0]].words
            raise ValueError(f"needs {words} ({missing[0]}), and an actor has {', '.join(_SCORED)} alone")

    def observed(self, params: Tree, rows: types.Rollout) -> Tree:
        """Return parameters whose statistics of observations contain the rows."""
        motion = ops.given(rows.motion, "observed: the rows have no motion")
        return self.architecture.observed(params, motion.observation, rows.mask * ops.valid_rows(rows)[:, None])
