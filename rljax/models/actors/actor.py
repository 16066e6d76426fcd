"""An actor: a network with a distribution of actions, or with the value of a state."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.models.actors import critics, distributions
from rljax.models.actors.denoising import Denoising
from rljax.models.actors.mlp import Mlp
from rljax.transforms import modules, ops
from rljax.types import Array, Key, Tree

_SCALE = {"logits": 0.01, "scalar": 1.0, "action": 1.0}  # of the last layer at the start
_LOG_STD = -20.0, 2.0  # bounds of log deviations that the network outputs, those of SAC (arXiv 1801.01290)
_INSIDE = 0.999  # of the bounds of tanh, for demonstrated actions on them
_SCORED = ("entropy", "square_prob", "value", "value_logits")
_EARLY = "early"  # parameters of the network of a chain's first steps
_LOGITS = "log_normaliser"  # of a critic of actions, or of categorical actions


class Motion(flax.struct.PyTreeNode):
    """The actions of trajectories, in place of tokens: ``Rollout.motion``. Behind the last action stands the state."""

    observation: Array  # [B, T, O] float32, before each action; behind the last one, of the state that follows
    taken: Array  # [B, T] int32, or [B, T, A] or [B, T, K + 1, A] float32, as the actor stores them
    legal: Array | None = None  # [B, T, A] bool, the actions that are allowed; None: all
    state: Tree | None = None  # [B, ...] of the episodes, which a later step continues


class Drawn(NamedTuple):
    """Actions of B states."""

    taken: Array  # [B] int32 or [B, A], as rows store them
    action: Array  # the same as the world reads them
    logp: Array  # [B], or [B, K] of actions that have several positions
    entropy: Array  # the same


@dataclasses.dataclass(frozen=True)
class Actor:
    """A network over observations as pure functions. Hashable, and equal when built alike: safe to close over in jit.

    Attributes:
      architecture: of the network.
      observation: O, how many numbers are observed.
      kind: of the distribution of actions.
      actions: A, the number of actions, or how many numbers an action has.
      denoising: the chain of a denoiser's actions.
      output: "logits", a distribution of actions; "scalar", a value; or "action", Q of a state and an action, which is
        the action's logit where actions are categorical, and else a number of both.
      bins: first center, last center and number of the bins of a value that is an expectation; None: a plain number.
    """

    architecture: Mlp
    observation: int
    kind: Literal["categorical", "gaussian", "denoiser"]
    actions: int
    denoising: Denoising = Denoising()
    output: Literal["logits", "scalar", "action"] = "logits"
    bins: tuple[float, float, int] | None = None

    @property
    def axes(self) -> Tree:
        """A tree like the parameters; each leaf is a tuple of None for each dimension: they are replicated."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        return jax.tree.map(lambda x: (None,) * x.ndim, shapes)

    @property
    def scored(self) -> tuple[bool, ...]:
        """Whether each of the positions that an action has in a row has a log-prob."""
        steps = self.kind == "denoiser" and self.denoising.positions == "step"
        return self.denoising.noisy if steps else (True,)

    @property
    def _outputs(self) -> int:
        if self.output == "scalar":
            return 1 if self.bins is None else self.bins[2]
        return 1 if self.reads_action else self.actions * (2 if self._spreads else 1)

    @property
    def _spreads(self) -> bool:
        """Whether the network outputs log deviations beside the means."""
        return self.output == "logits" and self.kind == "gaussian" and self.architecture.std == "output"

    @property
    def reads_action(self) -> bool:
        """Whether the network reads an action beside the observation."""
        return self.output == "action" and self.kind != "categorical"

    def init(self, key: Key) -> Tree:
        """Return random parameters: nested dictionaries of arrays."""
        shape, steps = self.architecture, self.denoising.steps
        chain = self.output == "logits" and self.kind == "denoiser"
        more = self.actions + steps if chain else self.actions if self.reads_action else 0
        params = shape.init(key, self.observation, self._outputs, _SCALE[self.output], more)
        if chain and self.denoising.split:
            early = dataclasses.replace(shape, normalise=False)
            params[_EARLY] = early.init(
                jax.random.fold_in(key, 1), self.observation, self._outputs, _SCALE[self.output], more
            )
        if chain and self.denoising.noise == "learned":
            params["log_std"] = jnp.full((steps, self.actions), self.denoising.log_std)
        if self.output == "logits" and self.kind == "gaussian" and shape.std == "free":
            params["log_std"] = jnp.full(self.actions, shape.log_std)
        return params

    def policy(
        self, params: Tree, observation: Array, legal: Array | None = None, taken: Array | None = None
    ) -> distributions.Distribution:
        """Return the distribution of actions.

        Args:
          params: from ``init``.
          observation: ``[..., O]``, of the states.
          legal: ``[..., A]`` bool, the actions that are allowed; None: all.
          taken: the actions. A denoiser's distribution is that of each state of the chain given the one before.

        Returns:
          Over actions, or over chains, in states ``[...]``.
        """
        if self.kind == "denoiser":
            return self._chain(params, observation, ops.given(taken, "policy: a chain needs its states"))
        out = self.architecture.apply(params, observation)
        if self.kind == "categorical":
            return distributions.Categorical.of(out, legal)
        if self._spreads:
            out, free = jnp.split(out, 2, axis=-1)
            log_std = jnp.clip(self.architecture.log_std + free, *_LOG_STD)
        else:
            log_std = jnp.broadcast_to(params["log_std"], out.shape)
        return distributions.Gaussian(out, log_std, self.architecture.squash)

    def transition(self, params: Tree, observation: Array, x: Array, step: Array) -> distributions.Gaussian:
        """Return the distribution of the state of a denoiser's chain after a step.

        Args:
          params: from ``init``.
          observation: ``[..., O]``.
          x: ``[..., A]``, the state before.
          step: ``[...]`` int32, its number.
        """
        time = jax.nn.one_hot(step, self.denoising.steps)
        v = self.architecture.apply(params, observation, x, time)
        if self.denoising.split:
            early = self.architecture.apply({**params, **params[_EARLY]}, observation, x, time)
            v = jnp.where(step[..., None] < self.denoising.split, early, v)
        return self.denoising.step(v, x, step, params.get("log_std"))

    def draw(
        self,
        params: Tree,
        observation: Array,
        keys: Key,
        legal: Array | None = None,
        temperature: Array | float = 1.0,
        shared: Key | None = None,
    ) -> Drawn:
        """Draw an action in each state, or take the most probable one.

        Args:
          params: from ``init``.
          observation: ``[B, O]``.
          keys: ``[B]``.
          legal: ``[B, A]`` bool, the actions that are allowed; None: all.
          temperature: of the distribution; 0: the most probable action, with the scores of temperature 1.
          shared: ``[B]``, keys that draw the first ``denoising.shared`` states of the chains; None: ``keys`` do.

        Returns:
          The actions.
        """
        if self.kind == "denoiser":
            return self._denoised(params, observation, keys, temperature, keys if shared is None else shared)
        plain: Any = self.policy(params, observation, legal)
        if isinstance(temperature, float | int) and temperature <= 0:
            taken = plain.mode()
            return Drawn(taken, plain.acted(taken), jnp.zeros(taken.shape[0]), plain.entropy())
        policy = plain.tempered(temperature)
        taken = jax.vmap(lambda p, key: p.draw(key))(policy, keys)
        return Drawn(taken, policy.acted(taken), policy.logp(taken), policy.entropy())

    def stored(self, action: Array, keys: Key) -> Array:
        """Return actions of a demonstration as rows store them; of a denoiser, chains that end in them.

        Args:
          action: ``[B]`` int32, or ``[B, A]`` in [-1, 1].
          keys: ``[B]``, of the noise of chains.
        """
        if self.kind == "denoiser":
            return self.denoising.stored(self.denoising.demonstrated(action, keys))
        if self.architecture.squash and self.kind == "gaussian":
            return jnp.arctanh(jnp.clip(action, -_INSIDE, _INSIDE))
        return action

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
          Scores ``[B, T]`` float32; ``logp`` is 0 where the mask is 0. A critic has no ``logp``; one that reads the
          action has Q as its ``log_normaliser``, the logsumexp of the one logit.

        Raises:
          ValueError: a score that the kind of actor does not have.
        """
        self.check(needs)
        motion: Any = ops.given(rows.motion, "score: the rows have no motion")
        if self.output == "scalar":
            return self._value(params, motion.observation)
        if self.reads_action:
            action = distributions.acted(self.kind, self.architecture.squash, motion.taken)
            every = {}
            for full in sorted(needs.divergence):
                actor, tree = (teachers or {})[modules.parts(full)[1][0]]
                policy: Any = actor.policy(jax.lax.stop_gradient(tree), motion.observation).tempered(temperature)
                every[full] = critics.every(self, params, policy, rows)
            q = self.of_action(params, motion.observation, action)
            return types.Scores(log_normaliser=q, divergence=every)
        read = motion.observation, motion.legal, motion.taken
        policy = self.policy(params, *read).tempered(temperature)
        fields: dict[str, Any] = {
            name: getattr(policy, name)() for name in (*_SCORED[:2], _LOGITS) if getattr(needs, name)
        }
        others = {modules.REFERENCE: (self, reference), **(teachers or {})}
        divergence = {}
        for full in sorted(needs.divergence):
            name, (named, *more), _ = modules.parts(full)
            if name.startswith(modules.EVERY):
                divergence[full] = policy.log_normaliser()
                continue
            if name == modules.LEAST:
                divergence[full] = critics.least(policy, [others[n] for n in (named, *more)], rows, temperature)
                continue
            if more:
                raise ValueError(f"needs.divergence={full!r}: a mixture of modules, which actors do not have")
            actor, tree = others[named]
            other = actor.policy(jax.lax.stop_gradient(tree), *read)
            divergence[full] = policy.divergence(name, other.tempered(temperature))
        logp = jnp.where(rows.mask > 0, policy.logp(motion.taken), 0.0)
        return types.Scores(logp=logp, divergence=divergence, **fields)

    def _denoised(self, params: Tree, observation: Array, keys: Key, temperature: Array | float, shared: Key) -> Drawn:
        """Return actions, drawn by denoising; with temperature 0 the chain of means that begins at 0."""
        chain, greedy = self.denoising, isinstance(temperature, float | int) and temperature <= 0
        heat = 1.0 if greedy else temperature

        def normal(step: Array | int, number: Array | int) -> Array:  # of the state with this number
            key = jnp.where(number < chain.shared, shared, keys)
            return jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, step), (self.actions,)))(key)

        def step(x: Array, number: Array) -> tuple[Array, tuple[Array, distributions.Gaussian]]:
            policy = self.transition(params, observation, x, jnp.broadcast_to(number, x.shape[:-1])).tempered(heat)
            moved = policy.mean + jnp.exp(policy.log_std) * normal(number, number + 1)
            x = policy.mean if greedy else jnp.where(jnp.asarray(chain.noisy)[number], moved, policy.mean)
            return x, (x, policy)

        first = normal(chain.steps, 0)
        first = jnp.zeros_like(first) if greedy else first
        last, steps = jax.lax.scan(step, first, jnp.arange(chain.steps))
        states, policy = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps)
        taken = chain.stored(jnp.concatenate([first[:, None], states], axis=1))
        apart = chain.positions == "step"
        policy = distributions.Chain.of(jax.tree.map(lambda x: x[:, :, None], policy) if apart else policy)
        logp = policy.logp(taken)
        return Drawn(taken, jnp.clip(last, -1.0, 1.0), logp * 0.0 if greedy else logp, policy.entropy())

    def _chain(self, params: Tree, observation: Array, taken: Array) -> distributions.Chain:
        """Return the distribution of chains ``[..., n + 1, A]``: of each state given the one before.

        Each is a whole chain, or with a position for each step, ``[..., T, 2, A]``, one of adjacent steps from step 0.
        """
        x, steps = taken[..., :-1, :], self.denoising.steps
        step = jnp.arange(steps)
        if self.denoising.positions == "step":
            step = (jnp.arange(x.shape[-3]) % steps)[:, None]
        step = jnp.broadcast_to(step, x.shape[:-1])
        seen = jnp.broadcast_to(observation[..., None, :], (*x.shape[:-1], observation.shape[-1]))
        return distributions.Chain.of(self.transition(params, seen, x, step))

    def of_action(self, params: Tree, observation: Array, action: Array) -> Array:
        """Return Q ``[...]`` of states ``[..., O]`` and actions ``[..., A]`` as the world reads them."""
        return self.architecture.apply(params, observation, action)[..., 0]

    def _value(self, params: Tree, observation: Array) -> types.Scores:
        out = self.architecture.apply(params, observation)
        if self.bins is None:
            return types.Scores(value=out[..., 0])
        first, last, count = self.bins
        return types.Scores(value=jax.nn.softmax(out) @ jnp.linspace(first, last, count), value_logits=out)

    def check(self, needs: types.Needs) -> None:
        """Raise ValueError if the actor does not have what is needed."""
        scored = (_LOGITS,) if self.reads_action else (*_SCORED, *(_LOGITS,) * (self.kind == "categorical"))
        if missing := [name for name in needs.requested if name not in scored]:
            words, what = types.SCORES[missing[0]].words, "a critic of actions" if self.reads_action else "an actor"
            raise ValueError(f"needs {words} ({missing[0]}), and {what} has {', '.join(scored)} alone")
        for name in sorted(modules.parts(full)[0] for full in needs.divergence) if self.kind != "categorical" else ():
            if name.startswith(modules.EVERY):
                if self.kind == "denoiser" or not self.architecture.squash:
                    raise ValueError("needs log int exp Q over actions whose density is known: model.mlp.squash=True")
            elif name != modules.LEAST:
                distributions.check_closed(name)
            elif self.kind == "denoiser":
                raise ValueError("needs the expectation of Q over its actions, and a denoiser's is not differentiated")

    def observed(self, params: Tree, rows: types.Rollout) -> Tree:
        """Return parameters whose statistics of observations contain the rows."""
        motion: Any = ops.given(rows.motion, "observed: the rows have no motion")
        return self.architecture.observed(params, motion.observation, rows.mask * ops.valid_rows(rows)[:, None])
