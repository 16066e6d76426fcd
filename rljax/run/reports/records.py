"""Records of sampled rollouts, one a row: ``rollouts.jsonl``.

A record holds the whole prompt and completion, and under "tokens" equally long lists about its first and last tokens:

    text        the characters that the token adds; a character of several tokens belongs to the last of them
    advantage   what weights the token in the loss
    ratio       exp(logp - behaviour_logp) in the row's last gradient step, under the policy that this step changed
    entropy     of the distribution that the token was drawn from, before top-k, top-p and min-p, nats
    kl          the k3 estimate of KL(sampling policy || reference), nats; where the algorithm reads a reference
    logp        log-prob under the policy, nats, in place of ratio where the policy did not sample the row

Rows of a world hold conversations: their completion and lists include what the world replied, see ``turns``. Those that
begin with given tokens include them; "head" is their number.

A list of equal numbers is written as that number. The update computes the log-prob for its loss in any case; a step
returns it for the logged rows only. Entropy and KL are those that the rollout has: the loss may read none.
"""

import codecs
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import traits
from rljax.run import programs
from rljax.run.reports import trajectories, turns
from rljax.run.reports.pages import images
from rljax.transforms import trajectories as trajectories_lib

LIMIT = 512
"""The most tokens of a record that are described, half of them from the end."""


def rollouts(program: programs.Program, setup: programs.Setup, step: int, rows: types.Rollout) -> list[dict[str, Any]]:
    """Return the records of rows, a ``Rollout`` of NumPy arrays.

    Args:
      program: the run.
      setup: the phase on devices.
      step: the step, from 1.
      rows: B rows; extra["log_ratio"] ``[B, T]`` is logp - behaviour_logp of their last gradient step.

    Returns:
      B records of "step", "index" of the prompt, "group", "prompt", "completion", "reward", "parts", and where the
      rows have them "outcome", "advantage", the mean over the row, "finish" and "tokens"; "token", the ids of a
      completion, or of a conversation that is its episode's only row, unless it begins with given tokens; "pictures" of
      the prompt, unless the row before has the same prompt; "marks", places that the completion writes, and "targets",
      those asked, of a ``traits.Marking`` task.
      Turns of chapters that did not take place and rows that fill a batch, without a token, are left out.
    """
    assert rows.index is not None
    about = traits.traits(setup.task)
    values, world = per_token(rows), rows.motion is None and turns.of_world(setup.task, rows)
    places, decode = turns.used(rows) if world else (), program.tokenizer.decode
    names = [name for name in getattr(setup.task, "extra", ()) if name in rows.extra]
    plan, out = getattr(getattr(setup.task, "rules", None), "plan", None), []
    for i in range(rows.mask.shape[0]):
        begun = 0 if "head" not in rows.extra else int(np.sum(rows.extra["head"][i]))
        keep = np.arange(places[i]) if world else np.flatnonzero(_shown(rows)[i] > 0)
        if not keep.size and (not world or getattr(setup.task, "rows", "") == "chapters"):
            continue
        ids = [] if rows.action is None else np.asarray(rows.action.token[i])[keep].tolist()
        if rows.motion is None:
            written, text = pieces(_vocabulary(program.tokenizer), ids), decode(ids)
        else:
            written = trajectories.actions(rows.motion, i, keep)
            text = "".join(written)
        record = {"step": step, **_row(setup, rows, i, world, decode, text)}
        if rows.motion is not None:
            over = plan and functools.partial(plan, int(rows.index[i]), "train")
            record["pictures"] = images.sources(trajectories.picture(rows.motion, i, keep, over)[None])
        sampled = rows.on_policy is not None and bool(rows.on_policy[i])
        if rows.outcome is not None and sampled:
            record["outcome"] = types.Outcome(int(rows.outcome[i])).name.lower()
        if rows.advantage is not None:
            mask = np.asarray(rows.mask[i]) > 0
            record["advantage"] = float(rows.advantage[i][mask].sum()) / max(int(mask.sum()), 1)
        if begun:
            record["head"] = begun
        elif rows.motion is None and about.rows_of_episode == 1:
            record["token"] = ids  # with prompt, reward and "tokens", what the source ``stored`` reads
        if rows.finish is not None:
            record["finish"] = types.Finish(int(rows.finish[i])).name.lower()
        chosen = [name for name in values if (name != "logp" if sampled else name in ("advantage", "logp"))]
        lists = {name: _known(values[name][i][keep], np.asarray(rows.mask[i])[keep] > 0) for name in chosen}
        if world:
            more = turns.described(rows, i, names, decode)
            lists |= more.pop("tokens")
            record |= more
        record["tokens"] = {
            "text": _ends(written),
            **{name: short(_ends(numbers)) for name, numbers in lists.items()},
        }
        if len(written) > LIMIT:
            record["tokens"]["omitted"] = len(written) - LIMIT  # between the two halves
        out.append(record)
    return out


def _row(setup: programs.Setup, rows: types.Rollout, i: int, world: bool, decode: Any, text: str) -> dict[str, Any]:
    """Return what a record says of a row as a whole. The prompt of a world depends on the episode and the seat."""
    assert rows.index is not None
    index, context = int(rows.index[i]), rows.context
    if (world or setup.stored is not None) and context is not None:
        prompt = decode(np.asarray(context.token[i])[np.asarray(context.mask[i]) > 0].tolist())
    else:
        prompt = setup.task.text(index, "train")
    record: dict[str, Any] = {}
    if pictures := _pictures(setup, rows, i):
        record["pictures"] = pictures
    if setup.stored is None and isinstance(setup.task, traits.Marking):
        if marks := setup.task.marks(index, "train", text):
            record["marks"], record["targets"] = marks
    return record | {
        "index": index,
        "group": int(rows.group[i]),
        "prompt": prompt,
        "completion": text,
        "reward": float(rows.reward[i] if rows.motion is None else np.sum(rows.token_reward[i])),
        "parts": {k: float(v[i]) for k, v in rows.parts.items()},
    }


def _pictures(setup: programs.Setup, rows: types.Rollout, i: int) -> list[str]:
    """Return the pictures whose placeholders the prompt of a row has; [] if the row before has this prompt."""
    context, about = rows.context, traits.traits(setup.task).pictures
    if context is None or context.image is None or about is None:
        return []
    token, image = np.asarray(context.token), np.asarray(context.image)
    if i and rows.group[i] == rows.group[i - 1] and all(np.array_equal(x[i], x[i - 1]) for x in (token, image)):
        return []
    placeholder = setup.networks["policy"].architecture.vision.placeholder
    return images.sources(image[i][: np.count_nonzero(token[i] == placeholder) // about.tokens])


def _shown(rows: types.Rollout) -> np.ndarray:
    """Return above 0 the tokens of a completion, those that it begins with included, ``[B, T]``."""
    return np.asarray(rows.mask) + np.asarray(rows.extra.get("head", 0.0))


def _known(values: np.ndarray, mask: np.ndarray) -> list[float | None]:
    """Return numbers, None where there is no mask."""
    return [value if counts else None for value, counts in zip(values.tolist(), mask.tolist(), strict=True)]


def per_token(rows: types.Rollout) -> dict[str, np.ndarray]:
    """Return the quantities of each token that the rows have, ``[B, T]`` each; numbers without a mask mean nothing."""
    values: dict[str, Any] = {}
    if rows.advantage is not None:
        values["advantage"] = rows.advantage
    if "log_ratio" in rows.extra:
        values["ratio"] = np.exp(np.minimum(rows.extra["log_ratio"], 80.0))
        values["logp"] = rows.extra["log_ratio"]  # of demonstrations, whose behaviour_logp is 0
    if rows.entropy is not None:
        values["entropy"] = rows.entropy
    if rows.ref_logp is not None and rows.raw_logp is not None:
        drawn = np.asarray(trajectories_lib.drawn(rows)) > 0  # a demonstration has no log-prob of the policy
        difference = np.where(drawn, np.asarray(rows.raw_logp) - np.asarray(rows.ref_logp), 0.0)
        values["kl"] = np.expm1(np.clip(-difference, -20.0, 20.0)) + difference  # as ops.kl_estimate
    return {name: np.broadcast_to(np.asarray(x, np.float64), rows.mask.shape) for name, x in values.items()}


def pieces(vocabulary: Sequence[bytes | None] | None, ids: Iterable[int]) -> list[str]:
    """Return the characters that each token completes; "" for a special token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    if vocabulary is None:
        return ["" for _ in ids]
    return [decoder.decode((vocabulary[i] if i < len(vocabulary) else None) or b"") for i in ids]


def short(values: Sequence[float | None]) -> list[float | None] | float | None:
    """Return numbers with four significant digits, whole ones whole; one number if all are equal."""
    rounded = [x if x is None or isinstance(x, int) else float(f"{x:.4g}") for x in values]
    return rounded[0] if rounded and rounded.count(rounded[0]) == len(rounded) else rounded


def _ends(values: list[Any]) -> list[Any]:
    return values if len(values) <= LIMIT else values[: LIMIT // 2] + values[-LIMIT // 2 :]


@functools.lru_cache(maxsize=1)
def _vocabulary(tokenizer: tokenizers.Tokenizer) -> list[bytes | None] | None:
    """Return the bytes of each id; None if the tokenizer does not decode token by token."""
    try:
        return tokenizer.pieces()
    except ValueError:
        return None
