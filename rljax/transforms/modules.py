"""Scores of modules beside the policy, as pieces read them: ``Rollout.scores``, computed once for each rollout."""

from rljax import types
from rljax.language import errors


def needs(*modules: str, field: str) -> types.Needs:
    """Return the needs of a piece that reads a field of ``types.Scores`` of some modules."""
    return types.Needs(scores=frozenset((module, field) for module in modules))


def score(r: types.Rollout, module: str, field: str) -> types.Array:
    """Return a score of a module.

    Args:
      r: the rows.
      module: the name of the module.
      field: "logp", "value", "reward" or another field of ``types.Scores``.

    Returns:
      ``[B, T]``; ``[B]`` for "reward".

    Raises:
      Absent: the rollout has no such score.
    """
    x = getattr(r.scores.get(module), field, None)
    if x is None:
        raise errors.Absent(f"the rollout has no scores[{module!r}].{field}")
    return x
