"""Shapes of rows that hold a demonstration, a preference pair or a conversation with a world.

====================  ============================================================================================
demonstrations        ``prompt`` and ``completion``, each a text or messages; or ``messages`` that end with a reply
preference pairs      ``prompt``, ``chosen`` and ``rejected``, each a text or messages; or ``chosen`` and
                      ``rejected`` as whole conversations that differ in their last message
conversations         ``token``, ids of all that was said, and lists about them, at the top or under ``tokens``, as
                      ``rollouts.jsonl`` has them: ``mask``, 1 where the policy wrote; ``turn``; ``token_reward``
====================  ============================================================================================

Messages are lists of {"role", "content"}; of a conversation the last reply is the completion, all before it the prompt.
"""

import math
from collections.abc import Mapping
from typing import Any

from rljax.language import messages

Exchange = tuple[list[dict[str, str]] | str, str]
"""A prompt, as messages or as plain text, and its completion."""


def demonstration(row: Mapping[str, Any]) -> Exchange:
    """Return the demonstration of a row; ValueError if it has another shape."""
    if row.get("messages") is not None:
        return _conversation(row["messages"], "messages")
    return _exchange(row.get("prompt"), row.get("completion"), "completion")


def pair(row: Mapping[str, Any]) -> tuple[Exchange, Exchange]:
    """Return (chosen, rejected) of a row, which have the same prompt; ValueError if it has another shape."""
    chosen, rejected = (_exchange(row.get("prompt"), row.get(name), name) for name in ("chosen", "rejected"))
    if chosen[0] != rejected[0]:
        raise ValueError("the prompts of 'chosen' and 'rejected' differ")
    return chosen, rejected


def _exchange(prompt: Any, completion: Any, name: str) -> Exchange:
    """Return the prompt and the completion of a row; a list that begins with another author is a whole conversation."""
    if isinstance(completion, list):
        before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        whole = isinstance(first := next(iter(completion), None), dict) and first.get("role") != "assistant"
        return _conversation(completion if whole else [*before, *completion], name)
    if not isinstance(completion, str) or not completion.strip():
        raise ValueError(f"{name!r} is {messages.shown(completion)}, expected a text or a list of messages")
    if isinstance(prompt, list):
        return _conversation([*prompt, {"role": "assistant", "content": completion}], name)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"'prompt' is {messages.shown(prompt)}, expected a text or a list of messages")
    return prompt, completion


def _conversation(listed: Any, name: str) -> Exchange:
    for message in listed if isinstance(listed, list) else [None]:
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ValueError(f"{name!r} has {messages.shown(message)}, expected messages with 'role' and 'content'")
    if len(listed) < 2 or listed[-1]["role"] != "assistant":
        raise ValueError(f"{name!r} does not end with a message of the assistant after others")
    return [{k: m[k] for k in ("role", "content")} for m in listed[:-1]], listed[-1]["content"]


LISTS: dict[str, type] = {"mask": int, "turn": int, "token_reward": float}
"""Of a conversation: numbers of each token, and their kind; ``token_reward`` may be absent."""


def conversation(row: Mapping[str, Any], count: int) -> dict[str, list[float]]:
    """Return the lists of a conversation of ``count`` tokens, ``LISTS``.

    Raises:
      ValueError: a list is absent, of another length, or has other numbers.
    """
    within, lists = row.get("tokens"), dict[str, list[float]]()
    within = within if isinstance(within, dict) else {}
    for name, kind in LISTS.items():
        given = row[name] if name in row else within.get(name, 0.0 if name == "token_reward" else None)
        listed = given if isinstance(given, list) else [given] * count  # one number stands for equal ones
        if len(listed) != count:
            cut = "; log.rollouts describes 512 tokens of a row" if "omitted" in within else ""
            raise ValueError(f"{name!r} has {len(listed)} numbers for the {count} tokens of the row{cut}")
        for x in listed:
            right = isinstance(x, kind) or (kind is float and isinstance(x, int))
            if isinstance(x, bool) or not right or not math.isfinite(x) or (kind is int and x < 0):
                what = "a number" if kind is float else "a whole number of at least 0"
                raise ValueError(f"{name!r} has {messages.shown(x)}, expected {what} for each token")
        lists[name] = listed
    if not set(lists["mask"]) <= {0, 1} or not any(lists["mask"]):
        raise ValueError("'mask' has to be 1 where the policy wrote a token, and 0 elsewhere")
    if sorted(lists["turn"]) != lists["turn"]:
        raise ValueError("'turn' falls, expected the turns that the policy had ended before each token")
    return lists
