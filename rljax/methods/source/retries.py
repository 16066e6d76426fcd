"""Second passes: prompts that are sampled again after the first pass has been scored, edited."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.source import edits, groups


@define.source
def refine(
    share: edits.Share = 1.0, refined: types.Count = 1, right: str = "", wrong: str = "", solution: types.Fraction = 0
) -> types.Source:
    """Sample rows again after their own completion and a verdict on it; refinements join the group.

    A refinement is sampled for ``share`` of the rows, under the prompt, the completion, the text ``right`` or ``wrong``
    by its verdict, and the part ``solution`` of the solution. ``refined`` of them replace the last rows of the group,
    those that succeed if any does, and are trained under the plain prompt, with ``on_policy`` 0. Source: Critique-GRPO
    (arXiv 2506.03106), with its indicative critiques; no model writes a critique here.
    """

    def edit(
        pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: types.Action, count: int, key
    ):
        sample = groups.sample(rollout)
        row = jnp.argsort(sample, stable=True)[:count]  # the first row of every group, then the second, ...
        good = rollout.reward[row] > 0
        verdict = [edits.only(good, edits.text(problems, right)), edits.only(~good, edits.text(problems, wrong))]
        shown = [edits.solution(solutions, row, solution)] if solution else []
        return edits.prompts(
            rollout, row, ops.valid_rows(rollout)[row] > 0, edits.completion(rollout, row), *verdict, *shown
        )

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit):
        solved, of = edits.right(second), groups.place(first)[edit.row]
        some = jax.ops.segment_max(solved.astype(jnp.int32), of, first.group.size)[of] > 0
        return edits.put(first, second, edit, solved | ~some, refined)

    longer = edits.room(right, wrong, share=solution, own=True)
    again = types.Again(edit=edit, merge=merge, share=share, by="row", samples=1, longer=longer, plain=True)
    return types.Source(solutions=solution > 0, off_policy=True, again=again)


@define.source
def reflect(share: edits.Share = 0.5, decompose: str = "", reflect: str = "") -> types.Source:
    """Sample groups without a success again under two templates; what succeeds joins them under the plain prompt.

    First the prompt and the text ``decompose``; where that fails, the prompt, a wrong completion of the first pass and
    the text ``reflect``. Source: Cog-Rethinker (2025), which reflects on an answer of the stage before. Successful rows
    alone replace the last ones of the group, with ``on_policy`` 0.
    """

    def edit(
        pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: Any, count: int, key: types.Key
    ):
        row, used = edits.places(rollout, edits.unsolved(rollout), -(-count // 2))
        row, used = (jnp.repeat(x, 2)[:count] for x in (row, used))
        late = jnp.arange(count) % 2 == 1
        first, second = edits.text(problems, decompose), edits.text(problems, reflect)
        wrong = edits.only(late, edits.completion(rollout, row))
        return edits.prompts(rollout, row, used, edits.only(~late, first), wrong, edits.only(late, second))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit):
        return edits.put(first, second, edit, edits.first_solved(first, second, edit, 2) & edits.right(second))

    def longer(problems: types.Problems, prompt: int, completion: int) -> int:
        return max(edits.longest(problems, decompose), completion + edits.longest(problems, reflect))

    again = types.Again(edit=edit, merge=merge, share=2 * share, longer=longer, plain=True)
    return types.Source(off_policy=True, again=again)


@define.source
def explained(share: edits.Share = 1.0, explanations: types.Count = 1, text: str = "") -> types.Source:
    """Sample explanations with the solution in the prompt, and train the explanations that succeed without it.

    Each of ``share`` of the prompts gets ``explanations`` rows, sampled after the solution and ``text``. Those that the
    verifier accepts replace the last rows of the group, with ``on_policy`` 0. Source: ExPO (arXiv 2507.02834), whose
    explanations end with the answer by construction.
    """

    def edit(
        pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: types.Action, count: int, key
    ):
        row, used = edits.places(rollout, groups.tally(rollout).count > 0, count)
        return edits.prompts(rollout, row, used, edits.solution(solutions, row, 1.0), edits.text(problems, text))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit):
        return edits.put(first, second, edit, edits.right(second))

    longer = edits.room(text, share=1.0)
    again = types.Again(edit=edit, merge=merge, share=share, samples=explanations, longer=longer, plain=True)
    return types.Source(solutions=True, off_policy=True, again=again)


def _in_place(edit: Any, longer: Any) -> types.Again:
    """Sample valid rows again in their places; ``edit`` edits each row."""

    def sampled(pool: types.Tree, problems: types.Problems, rollout: types.Rollout, *rest: Any) -> types.Edit:
        out = edit(pool, problems, rollout, *rest)
        return out.replace(used=out.used & (ops.valid_rows(rollout)[out.row] > 0))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit):
        return groups.replaced(first, second, edit, edit.row[:, None])

    return types.Again(edit=sampled, merge=merge, by="row", samples=1, longer=longer)


def of_rows(part: Any, longer: Any) -> types.Again:
    """Sample valid rows again that ``part(pool, problems, rollout, solutions, sample, of)`` gives something to read.

    ``sample`` is the row's number in its group, ``of`` the size of the group, ``[B]`` both.
    """

    def edit(pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: Any, count: int, key):
        row = jnp.arange(count, dtype=jnp.int32)
        parts = part(pool, problems, rollout, solutions, groups.sample(rollout), groups.size(rollout))
        used = jnp.asarray(sum(jnp.sum(mask, axis=-1) for _, mask in parts)) > 0
        return edits.prompts(rollout, row, used, *parts)

    return _in_place(edit, longer)


@define.source
def scaffold(
    steps: types.Count, start: types.Fraction = 0.2, steepness: types.Positive = 125.0, text: str = ""
) -> types.Source:
    """Show the rows of a group different shares of the solution, which fade over training.

    Row i of G sees ``text`` and the share (G - 1 - i) / (G - 1) / (1 + exp(steepness (t - start))), t the step over
    ``steps``; rows are trained under the prompt that they were sampled under. Source: RuscaRL (arXiv 2508.16949), whose
    scaffold is a rubric. Rows with a share are sampled twice, and the first sample is dropped.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return {"step": jnp.zeros((), jnp.int32)}

    def part(pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: types.Action, sample, of):
        fade = jax.nn.sigmoid(steepness * (start - pool["step"] / steps))
        share = (of - 1 - sample) / jnp.maximum(of - 1, 1) * fade
        shown = edits.solution(solutions, jnp.arange(of.size), share)
        return edits.only(jnp.any(shown[1] > 0, axis=1), edits.text(problems, text)), shown

    def observe(pool: types.Tree, metrics: types.Metrics) -> types.Tree:
        return {"step": pool["step"] + 1}

    return types.Source(solutions=True, init=init, observe=observe, again=of_rows(part, edits.room(text, share=1.0)))


@define.source
def hinted(share: types.Fraction = 0.5, chance: types.Fraction = 1.0, text: str = "") -> types.Source:
    """Write ``text`` and the first ``share`` of the solution into the prompt, and train the rows under it.

    QuestA (arXiv 2507.13266): half of the solution in the prompt, then a quarter, in two phases. With a falling
    schedule for ``share`` or ``chance`` the help is withdrawn. Differs from ``prefixed``, which begins the completion.
    Helped rows are sampled twice, and the first sample is dropped; statistics are of that one, without help.

    Args:
      share: of the solution; a number or a schedule.
      chance: probability that a prompt is helped; its rows all are, or none.
      text: what stands before the solution.
    """

    def edit(pool, problems, rollout, solutions, count, key):
        row = jnp.arange(count, dtype=jnp.int32)
        keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(rollout.group[row])
        helped = jax.vmap(lambda k: jax.random.bernoulli(k, chance))(keys)
        shown = edits.solution(solutions, row, share)
        used = helped & (jnp.any(shown[1] > 0, axis=1) | bool(problems.encode(text)))
        return edits.prompts(rollout, row, used, edits.text(problems, text), shown)

    return types.Source(solutions=True, again=_in_place(edit, edits.room(text, share=1.0)))


@define.source
def self_judged(verdicts: tuple[str, ...], text: str = "", samples: types.Count = 1) -> types.Source:
    """Pay each row by what the policy says of it under another prompt, in place of the verifier's reward.

    The policy reads the prompt, the completion and ``text``; a sample that is verdicts[i] of n and nothing else gives
    i / (n - 1), any other 0, and the mean of ``samples`` is the reward. The samples are not trained. Source: SSR-Zero
    (arXiv 2505.16637), whose score from 0 to 100 stands at the end of an analysis. The accuracy stays the verifier's,
    which reads the judgements too, to no effect.

    Args:
      verdicts: from the worst to the best.
      text: what stands behind the completion.
      samples: judgements of each row.

    Raises:
      ValueError: there are fewer than two verdicts, or one does not fit into a completion.
    """
    if len(verdicts) < 2:
        raise ValueError(f"self_judged: verdicts={verdicts}; expected at least two, from the worst to the best")

    def edit(pool, problems, rollout, solutions, count, key):
        row = jnp.arange(count, dtype=jnp.int32)
        used, behind = ops.valid_rows(rollout)[row] > 0, edits.text(problems, text)
        asked = edits.prompts(rollout, row, used, edits.completion(rollout, row), behind)
        allowed = np.full((len(verdicts), rollout.mask.shape[1]), -1, np.int32)  # -1 is no token
        for i, words in enumerate(map(problems.encode, verdicts)):
            if len(words) >= allowed.shape[1]:
                raise ValueError(
                    f"self_judged: verdict {verdicts[i]!r} has {len(words)} tokens; a completion has room for "
                    f"{allowed.shape[1] - 1} and the one that ends it"
                )
            allowed[i, : len(words)] = words
        state = jnp.broadcast_to(jnp.asarray(allowed), (count, *allowed.shape))  # what ``merge`` compares with
        blank = jnp.zeros((count, allowed.shape[1]), jnp.int32)
        return asked.replace(head=types.Action(blank, length=jnp.zeros((count,), jnp.int32), state=state))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit):
        assert edit.head is not None
        token, mask = edits.completion(second, jnp.arange(second.reward.size))
        said = jnp.where(mask > 0, token, -1).reshape(edit.row.size, samples, -1)
        same = jnp.all(said[:, :, None] == jnp.asarray(edit.head.state)[:, None], axis=3)  # [n, samples, verdicts]
        worth = jnp.linspace(0.0, 1.0, len(verdicts))[None, None]
        given = jnp.mean(jnp.max(same * worth, axis=2), axis=1)
        place = jnp.where(edit.used, edit.row, first.reward.size)
        return first.replace(reward=first.reward.at[place].set(given, mode="drop"))

    again = types.Again(edit=edit, merge=merge, by="row", samples=samples, longer=edits.room(text, own=True))
    return types.Source(again=again)


@define.source
def templates(texts: tuple[str, ...]) -> types.Source:
    """Sample the rows of a group under different texts, each in turn; "" is the plain prompt.

    Rows are trained under the prompt that they were sampled under, and compared with each other. Source: MEML-GRPO,
    whose experts are system prompts; its pull of the worst expert to the best is not here. Rows with a text are sampled
    twice, and the first sample is dropped.
    """

    def part(pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions: Any, sample, of):
        return [edits.only(sample % len(texts) == i, edits.text(problems, t)) for i, t in enumerate(texts)]

    return types.Source(again=of_rows(part, edits.room(*texts)))


@define.source
def expert_rewrite(
    before: str = "", after: str = "", room: types.Count = 64, prompts: edits.Share = 0.5
) -> types.Source:
    """Let the policy write the demonstration in its own words, and put a correct one into a group without a success.

    The prompt of the second pass is [prompt | before | demonstration | after], the prompt of training is the plain one,
    so the row is off-policy: ``ratio.token("behaviour")`` is pi(y | x) / pi_old(y | x, demonstration). Source: EGSR
    (arXiv 2505.08364), expert-guided self-reformulation.

    Args:
      before: text before the demonstration.
      after: text behind it.
      room: tokens kept for both texts.
      prompts: the largest share of the prompts that is sampled again, one row each.

    Raises:
      ValueError: the texts have more tokens than there is room for.
    """

    def edit(pool, problems, rollout, solutions, count, key):
        texts = [edits.text(problems, t) for t in (before, after)]
        written = sum(token.size for token, _ in texts)
        if written > room:
            raise ValueError(f"expert_rewrite: the texts have {written} tokens; room={room}")
        row, used = edits.places(rollout, edits.unsolved(rollout), count)
        return edits.prompts(rollout, row, used, texts[0], edits.solution(solutions, row, 1.0), texts[1])

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        right = edit.replace(used=edit.used & edits.right(second))
        return groups.replaced(first, second, right, (edit.row + groups.size(first)[edit.row] - 1)[:, None])

    def longer(problems: types.Problems, prompt: int, completion: int) -> int:
        return completion + room

    again = types.Again(edit=edit, merge=merge, share=prompts, samples=1, longer=longer, plain=True)
    return types.Source(solutions=True, off_policy=True, again=again)
