"""Scores of modules beside the policy, as pieces read them, and names of exact divergences from such modules.

``Rollout.scores`` is computed once for each rollout. A divergence sums over the vocabulary with the gradient of the
policy, so the module's distribution is computed beside the policy's, a group of positions at a time. One over the most
probable tokens of a module reads these in ``Rollout.scores``.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rljax import types
from rljax.language import errors
from rljax.transforms import ops

REFERENCE = "reference"  # no module: the policy that ``TrainState.reference`` holds
LEAST = "least_q"  # no divergence, but asked for like one: E_{a ~ policy} min_i Q_i(s, a) of modules whose logits are Q
# nor is this: log int exp Q(s, a) da of the module itself, as "every_q_N" with N draws of another's actions
EVERY = "every_q"
SAMPLING = "@sampling"  # ends the name of a divergence whose teachers read the prompt that rows were sampled under
_SEPARATOR, _END, _TOP = "/", "@", "top_"
_NONE = types.Needs()


def needs(*modules: str, field: str) -> types.Needs:
    """Return the needs of a piece that reads a field of ``types.Scores`` of some modules."""
    return types.Needs(scores=frozenset((module, field) for module in modules))


def named(piece: str, modules: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of modules that a piece reads; ValueError unless there is one, and each once."""
    names = (modules,) if isinstance(modules, str) else modules
    if not names or len({*names}) != len(names):
        raise ValueError(f"{piece}: module={names} must be at least one name, each once")
    return names


def score(r: types.Rollout, module: str, field: str) -> types.Array:
    """Return a score of a module.

    Args:
      r: the rows.
      module: the name of the module.
      field: "logp", "value", "reward", "process" or another field of ``types.Scores``.

    Returns:
      ``[B, T]``; ``[B]`` for "reward".

    Raises:
      Absent: the rollout has no such score.
    """
    x = getattr(r.scores.get(module), field, None)
    if x is None:
        raise errors.Absent(f"the rollout has no scores[{module!r}].{field}")
    return x


def logit(s: types.Scores) -> types.Array:
    """Return the logit of each token, [B, T]: its log-prob among all tokens, and log sum exp of the logits; or Absent.

    Divided by the temperature, as log-probs are. Of a module whose logits are Q it is Q(s_t, a_t). A critic that reads
    the action has that one logit, and no log-probs.
    """
    logp = s.logp if s.raw_logp is None else s.raw_logp
    if logp is None and s.log_normaliser is not None:
        return s.log_normaliser
    if logp is None or s.log_normaliser is None:
        raise errors.Absent("it needs the log-probs and scores.log_normaliser of a module")
    return logp + s.log_normaliser


def mixture(logp: Sequence[types.Array]) -> types.Array:
    """Return the log of the mean probability of some distributions, in their shape."""
    return logp[0] if len(logp) == 1 else jax.nn.logsumexp(jnp.stack(logp), axis=0) - jnp.log(len(logp))


def divergence(name: str, *modules: str, sampling: bool = False, top: int = 0) -> str:
    """Return the name, in ``Needs.divergence``, of a divergence from the mixture of modules; none: the reference.

    Args:
      name: of ``ops.divergence``.
      *modules: the modules.
      sampling: whether they read the prompt that rows were sampled under, not the prompt of training.
      top: k, of the divergence between distributions over the k most probable tokens of one module and all others as
        one token; 0: over the vocabulary.

    Raises:
      ValueError: ``top`` with another number of modules than one, or with ``sampling``.
    """
    if top and (len(modules) != 1 or sampling):
        raise ValueError(f"top={top}: expected one teacher that reads the prompt of training, {modules=}, {sampling=}")
    return _SEPARATOR.join((name, *modules)) + SAMPLING * sampling + f"{_END}{top}" * bool(top)


def top(divergence: str) -> int:
    """Return the number of most probable tokens of a name in ``Needs``; 0: it is over the vocabulary."""
    end = divergence.partition(_END)[2]
    return int(end) if end.isdecimal() else 0


def divergence_needs(divergence: str) -> types.Needs:
    """Return the needs of a piece that reads a divergence, by its name."""
    count, (_, names, _) = top(divergence), parts(divergence)
    stored = needs(*names, field=f"{_TOP}{count}") if count else _NONE
    return stored | types.Needs(divergence=frozenset({divergence}))


def asked(field: str) -> types.Needs:
    """Return what a module computes for a field in ``Needs.scores``, such as "value"; "top_32" is of ``Scores.top``.

    A name that begins with ``LEAST`` or one of ``ops.MODES`` is of ``Scores.divergence``.
    """
    if field.startswith((LEAST, *ops.MODES)):
        return types.Needs(divergence=frozenset({field}))
    if field.startswith(_TOP):
        return types.Needs(top=frozenset({int(field.removeprefix(_TOP))}))
    by_default = field in types.SCORES and not hasattr(_NONE, field)  # the log-probs, and what a module's texts bring
    return _NONE if by_default else dataclasses.replace(_NONE, **{field: True})


def parts(divergence: str) -> tuple[str, tuple[str, ...], bool]:
    """Return (a name of ``ops.divergence``, modules, whether of the sampling prompt) of a name in ``Needs``."""
    name, *modules = divergence.partition(_END)[0].split(_SEPARATOR)
    return name, tuple(modules) or (REFERENCE,), divergence.endswith(SAMPLING)


def compared(needs: types.Needs) -> frozenset[str]:
    """Return what the divergences over the vocabulary are from: names of modules, and ``REFERENCE``."""
    read = {field for _, field in needs.scores if field.startswith(ops.MODES)}
    names = {name for name in needs.divergence if not top(name)} | _least(needs) | read
    return frozenset(module for name in names for module in parts(name)[1])


def _least(needs: types.Needs) -> frozenset[str]:
    asked = needs.divergence | {field for _, field in needs.scores}
    return frozenset(name for name in asked if name.startswith(LEAST))


def critics(needs: types.Needs) -> frozenset[str]:
    """Return the modules over whose Q the policy takes an expectation."""
    return frozenset(module for name in _least(needs) for module in parts(name)[1])


def draws(needs: types.Needs) -> int:
    """Return how many actions of a policy estimate ``EVERY``; 0: it is not asked for."""
    return max(
        (int(parts(name)[0].rpartition("_")[2]) for name in needs.divergence if name.startswith(EVERY)), default=0
    )


def reads_reference(needs: types.Needs) -> bool:
    """Return whether the parameters of the reference are read: for its log-probs, or for an exact divergence."""
    return needs.reference or REFERENCE in compared(needs)
