"""Sampling that critics steer: log-probs shifted by Q, and beams of steps that V chooses."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from rljax import models, types
from rljax.models.scores import scoring
from rljax.sampling import samples as samples_lib
from rljax.sampling import segments, stopping
from rljax.sampling.config import SamplerConfig
from rljax.transforms import ops

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Shifted:
    """A ``Policy``: pi(a | s) ~ pi_0(a | s) exp(beta (min_i Q_i(s, a) - V(s))), Q_i the logits of critics.

    The perturbed policy of ILQL (arXiv 2206.11871, section 4.3). V(s) is one number for all tokens, so that it cancels
    and nothing reads it. Logits of policy and critics are divided by the temperature together, as ``ilql`` trains them.
    Parameters, weights and caches are tuples, one entry for each network.
    """

    networks: tuple[models.Model, ...]  # the policy, then the critics
    beta: float  # factor of Q - V, in nats for a unit of the return

    def decode_params(self, params: types.Tree) -> types.Tree:
        """Return the parameters of each network in the form that the other functions read."""
        return tuple(model.decode_params(p) for model, p in zip(self.networks, params, strict=True))

    def _all(self, each: list[tuple[Array, Any]]) -> tuple[Array, Any]:
        """Return the hidden states of all networks side by side, and their caches."""
        return jnp.concatenate([hidden for hidden, _ in each], axis=-1), tuple(cache for _, cache in each)

    def prefill(self, weights: types.Tree, *read: Any) -> tuple[Array, Any]:
        """Run every network over the prompts."""
        return self._all([model.prefill(w, *read) for model, w in zip(self.networks, weights, strict=True)])

    def extend(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append one token to each row in every network."""
        each = zip(self.networks, weights, cache, strict=True)
        return self._all([model.extend(w, token, mask, c) for model, w, c in each])

    def select(self, cache: Any, prompts: Array | None, rows: Array) -> Any:
        """Return the caches of a selection of rows."""
        return tuple(model.select(c, prompts, rows) for model, c in zip(self.networks, cache, strict=True))

    def logits(self, params: types.Tree, hidden: Array) -> Array:
        """Return the shifted logits, from the hidden states of all networks side by side."""
        ends = itertools.accumulate(model.architecture.width for model in self.networks)
        parts = jnp.split(hidden, [*ends][:-1], axis=-1)
        z, *q = (model.logits(w, h) for model, w, h in zip(self.networks, params, parts, strict=True))
        return z + self.beta * jnp.min(jnp.stack(q), axis=0)


@dataclasses.dataclass(frozen=True)
class Beams:
    """A search over steps of text, which keeps the continuations with the largest values.

    Each of ``count`` beams has ``branches`` continuations by one step. The step-level beam search of AlphaMath (arXiv
    2405.03553, algorithm 2). A beam that has ended stays while its value is among the largest, and is not continued.
    The value of a row is V behind its last token; of one that has ended, before it, since critics of states are not
    trained behind an end.
    """

    policy: samples_lib.Policy
    critic: models.Model  # with output "scalar": V of states, or scores of steps
    count: int
    branches: int
    delimiters: tuple[int, ...]  # token ids that end a step

    def search(
        self,
        params: tuple[types.Tree, types.Tree],
        prompts: types.Prompts,
        keys: types.Key,
        samples: int,
        config: SamplerConfig,
        ends: stopping.Ends,
        length: int,
    ) -> samples_lib.Sample:
        """Return the beams of largest value, the best first; at temperature 0 the greedy completion.

        Args:
          params: of policy and critic.
          prompts: P prompts ``[P, L]``.
          keys: ``[P * samples]`` typed keys.
          samples: beams of each prompt to return.
          config: as in ``generate``.
          ends: as in ``generate``.
          length: as in ``generate``.

        Returns:
          P * samples completions; ``steps`` and ``slots`` count the last step only.

        Raises:
          ValueError: ``samples`` exceeds ``count``.
        """
        if samples > self.count:
            raise ValueError(f"samples={samples}: the search keeps {self.count} beams of each prompt")
        count, branches = (1, 1) if config.temperature == 0 else (self.count, self.branches)
        (policy, critic), each, asked = params, count * branches, prompts.token.shape[0]
        keys = jax.vmap(lambda key: jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(each)))(keys[::samples])
        empty = samples_lib.empty(asked * each, length, None, ends.pad)
        start = segments.renewed(empty, jnp.ones((asked * each,), bool), ends.pad)
        again = jnp.arange(asked * each) % branches > 0  # copies of a beam

        def step(sample: samples_lib.Sample) -> samples_lib.Sample:
            ended, read = sample.finish != types.Finish.UNFINISHED, (policy, prompts, keys.reshape(-1))
            given = {"segment": length, "pause": self.delimiters}
            sample = segments.resume(self.policy, *read, sample, jnp.zeros_like(ended), config, ends, **given)
            value = jnp.where(ended & again, -jnp.inf, self.values(critic, prompts, sample))
            best = jax.lax.top_k(value.reshape(asked, each), count)[1] + jnp.arange(asked)[:, None] * each
            return samples_lib.mapped(lambda x: x[ops.repeat(best.reshape(-1), branches)], sample)

        last = jax.lax.while_loop(lambda s: jnp.any(s.finish == types.Finish.UNFINISHED), step, start)
        first = jnp.arange(asked * each).reshape(asked, count, branches)[:, :, 0]
        first = jnp.broadcast_to(first[:, : min(count, samples)], (asked, samples)).reshape(-1)
        return samples_lib.mapped(lambda x: x[first], last)

    def values(self, params: types.Tree, prompts: types.Prompts, sample: samples_lib.Sample) -> Array:
        """Return the critic's value of each row that has tokens, ``[B]``."""
        rows = sample.token.shape[0]
        of = rows // prompts.token.shape[0]
        rollout = types.Rollout(
            mask=sample.mask,
            reward=jnp.zeros((rows,), jnp.float32),
            group=jnp.arange(rows, dtype=jnp.int32),
            context=types.Context(token=ops.repeat(prompts.token, of), mask=ops.repeat(prompts.mask, of)),
            action=types.Action(token=sample.token),
        )
        scores: Any = scoring.score(self.critic, params, rollout, types.Needs(value=True, process=True))
        last = jnp.maximum(sample.length - 1, 0)[:, None]
        before, behind = (jnp.take_along_axis(x, last, axis=1)[:, 0] for x in (scores.value, scores.process))
        return jnp.where(sample.finish == types.Finish.UNFINISHED, behind, before)
