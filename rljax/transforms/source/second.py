"""Second passes: prompts that are sampled again after the first pass has been scored, edited.

Edits stand after the prompt. Texts are written by the run's tokenizer, which must know their characters; "" adds
nothing. The second pass has a fixed size: places that are not needed are decoded, and count for nothing.
"""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import edits


def _hinted(share: float, hints: tuple[float, ...], text: str, plain: bool) -> types.Again:
    """Sample unsolved groups again, each with several shares of its solution, and keep the first that succeeds."""
    levels = len(hints)

    def edit(
        pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: types.Action, count: int, key
    ):
        row, used = edits.places(rollout, edits.unsolved(rollout), -(-count // levels))
        row, used = (jnp.repeat(x, levels)[:count] for x in (row, used))
        shown = jnp.tile(jnp.asarray(hints, jnp.float32), -(-count // levels))[:count]
        return edits.prompts(rollout, row, used, edits.text(problems, text), edits.solution(solutions, row, shown))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit):
        kept = edits.first_solved(first, second, edit, levels)
        return edits.alone(edits.put(first, second, edit, kept), first)

    longer = edits.room(text, share=max(hints))
    return types.Again(edit=edit, merge=merge, share=levels * share, longer=longer, plain=plain)


@define.source
def ghpo(
    share: edits.Share = 0.5, hints: tuple[types.Fraction, ...] = (0.25, 0.5, 0.75), text: str = ""
) -> types.Source:
    """Sample groups without a success again, with the first part of the solution in the prompt, and train them so.

    The smallest of the shares ``hints`` whose group has a success replaces the group; without one it stays. Source:
    GHPO (arXiv 2507.10628), which samples the shares one after the other until one succeeds; here all are sampled at
    once, which has the same distribution. ``share`` of the step's prompts have places; ``text`` stands before the hint.
    """
    return types.Source(solutions=True, again=_hinted(share, hints, text, plain=False))


@define.source
def guide(share: edits.Share = 0.5, hint: types.Fraction = 0.5, text: str = "") -> types.Source:
    """Sample groups without a success again with a hint, and train what succeeds under the prompt without it.

    The hint is ``text`` and the first part ``hint`` of the solution. Rows have ``on_policy`` 0 and behaviour log-probs
    under the hinted prompt, so that only a ratio to the "behaviour" policy corrects them; Guide (arXiv 2506.13923),
    whose hints a stronger model wrote. Differs from ``ghpo`` by the prompt that is trained.
    """
    return types.Source(solutions=True, off_policy=True, again=_hinted(share, (hint,), text, plain=True))
