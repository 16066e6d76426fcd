"""Inserts: second passes that write tokens into the policy's own completion, and let the policy go on.

What the policy had written before them is trained as it was sampled in the first pass; the tokens that were inserted
are a head, which no loss touches but ``penalty.hint_nll``, unless a piece says otherwise.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define, ops
from rljax.transforms.frame import extras
from rljax.transforms.source import edits, groups

Array = types.Array


@define.source
def rethink(texts: tuple[str, ...], share: edits.Share = 0.25, room: types.Count = 64) -> types.Source:
    """Write a trigger behind a finished completion, let the policy go on, and keep the whole where it is right.

    One of ``texts`` is drawn for each of ``share`` of the rows, the first of every group first. What succeeds takes the
    row's place with ``on_policy`` 0, so that ``exp_grpo`` fits it beside the policy term, as in forced rethinking of
    VL-Rethinker (arXiv 2504.08837); ``penalty.hint_nll`` fits the trigger too. A recipe without predicates reinforces
    it like any row.

    Args:
      texts: triggers.
      share: of the rows that are continued.
      room: tokens kept for the trigger and what follows; rows that leave less are not continued.

    Raises:
      ValueError: a text has as many tokens as there is room for.
    """

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        whole = edits.joined(first, second, edit.row, edits.written(first)[edit.row])
        right = edit.replace(used=edit.used & edits.right(second))
        return groups.replaced(first, whole.replace(on_policy=0 * whole.reward), right, edit.row[:, None])

    edit = _after_the_end("rethink", texts, room, lambda rollout: jnp.ones(rollout.group.shape, bool))
    again = types.Again(edit=edit, merge=merge, share=share, by="row", samples=1)
    return types.Source(off_policy=True, supplies=frozenset({"head"}), again=again)


@define.source
def probed(texts: tuple[str, ...], share: edits.Share = 0.25, room: types.Count = 64) -> types.Source:
    """Write a probe behind completions that ended wrong, and train all tokens, the probe included.

    One of ``texts`` is drawn for each of at most ``share`` of the rows; what follows takes the row's place. Writes
    extra["probe_logp"] ``[B, T]`` for ``ratio.mixture``: on the tokens of a probe log mu of the uniform draw, the share
    of the texts with this token among those with the tokens before it; the behaviour log-prob on the others. Entropy
    and the unfiltered log-prob at sampling are 0 on a probe, as on demonstrations, so ``reward.kl`` charges it -log
    ref. Source: REX-RAG (arXiv 2508.08149). Its release scales mu by the error rate too, which is not done here.

    Args:
      texts: probes.
      share: the largest share of the rows that is continued.
      room: tokens kept for the probe and what follows; rows that leave less are not continued.

    Raises:
      ValueError: a text has as many tokens as there is room for.
    """

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        at = edits.written(first)[edit.row]
        whole = edits.joined(first, second, edit.row, at)
        column = jnp.arange(first.mask.shape[1])[None, :]
        probe = (whole.extra["head"] > 0) & (column >= at[:, None])
        assert edit.head is not None and whole.behaviour_logp is not None
        logp = jnp.where(probe, jnp.asarray(edit.head.state), whole.behaviour_logp)
        head = jnp.where(probe, 0.0, whole.extra["head"])
        whole = whole.replace(mask=jnp.where(probe, 1.0, whole.mask), behaviour_logp=logp)
        whole = extras.put(whole, {"head": head, "probe_logp": logp})
        first = extras.put(first, {"probe_logp": first.behaviour_logp})
        return groups.replaced(first, whole, edit, edit.row[:, None])

    edit = _after_the_end("probed", texts, room, lambda rollout: rollout.reward <= 0)
    again = types.Again(edit=edit, merge=merge, share=share, by="row", samples=1)
    return types.Source(supplies=frozenset({"probe_logp"}), again=again)


@define.source
def intervene(tokens: types.Count = 1, share: edits.Share = 0.25) -> types.Source:
    """Correct a wrong completion where it first leaves the demonstration, and let the policy go on from there.

    The demonstration's next ``tokens`` tokens are written behind completions that agree with it, for at most ``share``
    of the rows, in their places. No loss touches the tokens of the expert but ``penalty.hint_nll``; the tokens before
    and after them are the policy's. Sources: the interventions of HIL-SERL (arXiv 2410.21845), where a human decides
    when, and the patches of UI-S1 (arXiv 2509.11543) at the first action that a recorded trajectory does not have.
    """

    def edit(pool, problems, rollout, solutions, count, key):
        words = jnp.maximum(solutions.length - 1, 0)
        at = _agreed(rollout, jnp.arange(words.size), solutions.token, words)
        row, used = _rows((rollout.reward <= 0) & (at < words), rollout, count)
        length = jnp.where(used, jnp.minimum(at + tokens, words)[row], 0)
        return edits.prompts(rollout, row, used).replace(head=types.Action(solutions.token[row], length=length))

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        assert edit.head is not None and edit.head.length is not None
        at = _agreed(first, edit.row, edit.head.token, edit.head.length)
        return groups.replaced(first, edits.joined(first, second, edit.row, at), edit, edit.row[:, None])

    again = types.Again(edit=edit, merge=merge, share=share, by="row", samples=1)
    return types.Source(solutions=True, supplies=frozenset({"head"}), again=again)


@define.source
def answered(text: str) -> types.Source:
    """Write the task's solution behind each thought, in place of the answer that the policy wrote; nothing is sampled.

    A thought ends with the last ``text`` of a completion; the solution is what follows the last one of the
    demonstration, its end and its mistakes included, and is trained too. extra["reference_answer"] ``[B, T]`` is 1 on
    it. Completions without the text stay as they are, and so do completions that leave no room. The verifier
    has paid the first pass. Source: VeriFree (arXiv 2505.21493).

    Args:
      text: such as "####"; its tokens must be the same wherever it stands.

    Raises:
      ValueError: text is empty.
    """
    if not text:
        raise ValueError("answered: text is empty; expected what separates thought and answer")

    def edit(pool, problems, rollout, solutions, count, key):
        ids = problems.encode(text)
        at = edits.last_place(rollout.action.token, edits.written(rollout), ids)
        answer = edits.behind(solutions.token, solutions.length, ids)
        words = jnp.sum(answer, axis=1, dtype=jnp.int32)
        order = jnp.argsort(~answer, axis=1, stable=True)
        column = jnp.arange(answer.shape[1])[None, :]
        answer = jnp.take_along_axis(solutions.token, order, axis=1), column < words[:, None]
        every = jnp.arange(count, dtype=jnp.int32)
        ends = at + len(ids)
        used = (at < edits.written(rollout)) & (ends + words <= rollout.mask.shape[1]) & (ops.valid_rows(rollout) > 0)
        head = edits.inserted(rollout, every, ends, answer).replace(state=ends)
        return edits.prompts(rollout, every, used).replace(head=head)

    def merge(first: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        assert edit.head is not None
        thought = jnp.asarray(edit.head.state)
        whole = edits.joined(first, second, edit.row, thought)
        column = jnp.arange(first.mask.shape[1])[None, :]
        here = (column >= thought[:, None]) & (second.mask > 0)
        paid = first.token_reward
        whole = whole.replace(
            reward=first.reward,
            token_reward=None if paid is None else jnp.where(column < thought[:, None], paid, 0.0),
            outcome=first.outcome,
            parts=first.parts,
            domain=first.domain,
            valid=first.valid,
            on_policy=jnp.ones_like(first.reward),
        )
        whole = extras.put(whole, {"reference_answer": here * 1.0})
        first = extras.put(first, {"reference_answer": jnp.zeros_like(first.mask)})
        return groups.replaced(first, whole, edit, edit.row[:, None])

    again = types.Again(edit=edit, merge=merge, by="row", samples=1, plain=True, sampled=False)
    return types.Source(solutions=True, supplies=frozenset({"reference_answer"}), again=again)


def _rows(chosen: Array, rollout: types.Rollout, count: int) -> tuple[Array, Array]:
    """Return ``count`` rows, the chosen ones first, the first of each group before others."""
    chosen = chosen & (ops.valid_rows(rollout) > 0)
    row = jnp.lexsort((groups.sample(rollout), ~chosen))[:count].astype(jnp.int32)
    return row, chosen[row]


def _agreed(rollout: types.Rollout, row: Array, token: Array, most: Array) -> Array:
    """Return how many first tokens of rows ``[n]`` are equal to ``token`` ``[n, T]``, at most ``most`` ``[n]``."""
    assert rollout.action is not None
    end = jnp.minimum(most, edits.written(rollout)[row])
    same = (rollout.action.token[row] == token) & (jnp.arange(token.shape[1])[None, :] < end[:, None])
    return jnp.sum(jnp.cumprod(same, axis=1), axis=1, dtype=jnp.int32)


def _after_the_end(name: str, texts: tuple[str, ...], room: int, chosen: Any) -> Any:
    """Return an edit that writes one of the texts behind completions that ended, of rows ``chosen(rollout)`` ``[B]``.

    ``head.state`` ``[n, T]`` is the log-prob of the tokens of the text, given those before, under the uniform draw.
    """
    if not texts:
        raise ValueError(f"{name}: texts is empty; expected at least one")

    def edit(pool, problems, rollout, solutions, count, key):
        words, mask, logp = _drawn_texts([problems.encode(t) for t in texts])
        if words.shape[1] >= room:
            raise ValueError(f"{name}: a text has {words.shape[1]} tokens; room={room} must be above that")
        at = edits.written(rollout)
        fits = (rollout.finish == types.Finish.STOP) & (at <= rollout.mask.shape[1] - room)
        row, used = _rows(fits & chosen(rollout), rollout, count)
        keys = jax.vmap(lambda r: jax.random.fold_in(key, r))(row)
        which = jax.vmap(lambda k: jax.random.randint(k, (), 0, len(texts)))(keys)
        head = edits.inserted(rollout, row, at[row], (words[which], mask[which]))
        column = jnp.arange(rollout.mask.shape[1])[None, :] - at[row, None]
        state = jnp.take_along_axis(logp[which], jnp.clip(column, 0, words.shape[1] - 1), axis=1)
        head = head.replace(length=jnp.where(used, jnp.asarray(head.length), 0), state=state)
        return edits.prompts(rollout, row, used).replace(head=head)

    return edit


def _drawn_texts(texts: list[list[int]]) -> tuple[Array, Array, Array]:
    """Return tokens, mask and log-probs ``[K, W]`` of K texts, one of which is drawn."""
    width = max(map(len, texts))
    token, logp = np.zeros((len(texts), width), np.int32), np.zeros((len(texts), width), np.float32)
    mask = np.zeros((len(texts), width), np.float32)
    for i, words in enumerate(texts):
        token[i, : len(words)], mask[i, : len(words)] = words, 1
        for j in range(len(words)):
            like, before = (sum(t[:n] == words[:n] for t in texts if len(t) >= n) for n in (j + 1, j))
            logp[i, j] = math.log(like / before)
    return jnp.asarray(token), jnp.asarray(mask), jnp.asarray(logp)
