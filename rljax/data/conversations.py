"""Conversations of several turns as tokens: what stands between the turns of the assistant.

A row of a conversation is [prompt | turn | reply | turn | ...]. The policy writes the turns; prompt and replies are
written here, by the chat template, so that the row is the template's text of the whole conversation.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.data import chat, tokenizers
from rljax.language import messages as shown

_ASKED = ({"role": "user", "content": "?"}, {"role": "assistant", "content": tokenizers.MARK})


@dataclasses.dataclass(frozen=True)
class Writer:
    """Write messages as tokens by the tokenizer's chat template, or without one as plain text.

    In plain text, contents follow each other as they are, and end-of-sequence ends a turn. A chat template opens and
    ends every message. Contents that have the text of a special token become this token, as everywhere.

    Args:
      tokenizer: any.
      template: whether to write by the chat template.
      tools: JSON schemas of functions that the template shows.
    """

    tokenizer: tokenizers.Tokenizer
    template: bool
    tools: tuple[Mapping[str, Any], ...] = ()

    def prompt(self, messages: chat.Messages) -> list[int]:
        """Return the ids of the messages before the first turn, and of what opens the turn."""
        if not self.template:
            return self.tokenizer.prompt(_plain(messages))
        return self.tokenizer.encode(self._text(messages))

    def turn(self, text: str) -> list[int]:
        """Return the ids of a turn as a demonstration writes it, with its stop token."""
        if not self.template:
            return [*tokenizers.continuation(self.tokenizer, "\n", text), self.tokenizer.eos]
        before, start, end = self._frame
        return tokenizers.continuation(self.tokenizer, before, start + text + end)

    def between(self, messages: chat.Messages, stopped: bool = True) -> list[int]:
        """Return the ids that stand between a turn and the next one.

        Args:
          messages: what the assistant is told; may be empty.
          stopped: whether the turn ends with a stop token. If not (it was too long, or a text ended it), the ids begin
            with the template's stop token; in plain text nothing ends the turn.

        Returns:
          Token ids, up to and including the ids that open the next turn.

        Raises:
          ValueError: the template rejects the messages, or does not end a turn of the assistant with a stop token.
        """
        if not self.template:
            return tokenizers.continuation(self.tokenizer, "\n", _plain(messages)) if messages else []
        text = self._text([*_ASKED, *messages])
        begin, end = self._end(text)
        whole, before = (self.tokenizer.encode(part) for part in (text, text[:end]))
        if whole[: len(before)] != before:
            raise ValueError(f"chat template: a token spans the end of a turn in {shown.shown(text)}")
        ending = [] if stopped else tokenizers.continuation(self.tokenizer, "\n", text[begin:end])
        return [*ending, *whole[len(before) :]]

    def check(self, opening: chat.Messages, roles: Sequence[str]) -> None:
        """Check that a row of turns and replies is what the template writes for the whole conversation.

        Args:
          opening: messages before the first turn.
          roles: of the messages that follow turns.

        Raises:
          ValueError: it is not: the template rejects a role, or writes earlier messages differently later.
        """
        if not self.template:
            return
        for role in roles:
            so_far, row = list(opening), self.prompt(opening)
            for number in range(3):
                written = [{"role": role, "content": f"told {number}"}]
                so_far += [{"role": "assistant", "content": f"said {number}"}, *written]
                row += [*self.turn(f"said {number}"), *self.between(written)]
                whole = self.prompt(so_far)
                if whole != row:
                    same = next((i for i, (a, b) in enumerate(zip(whole, row, strict=False)) if a != b), len(whole))
                    raise ValueError(
                        f"chat template: after {number + 1} turns answered by role {role!r}, it writes the conversation"
                        f" differently than turn by turn, from token {same} on: {self._shown(whole, same)} instead of"
                        f" {self._shown(row, same)}; choose another role, or set exact=False to go on turn by turn"
                    )

    @functools.cached_property
    def _frame(self) -> tuple[str, str, str]:
        """What the template writes before a turn, at its start, and at its end, up to the stop token."""
        before, text = self._text(_ASKED[:1]), self._text([*_ASKED, _ASKED[0]])
        begin, end = self._end(text)
        start = text[len(before) : begin - len(tokenizers.MARK)] if text.startswith(before) else ""
        return before, start, text[begin:end]

    def _text(self, messages: chat.Messages) -> str:
        return self.tokenizer.chat(messages, True, self.tools or None)

    def _end(self, text: str) -> tuple[int, int]:
        """Return where the content of the marked message ends in a text, and where its stop token ends."""
        _, mark, rest = text.partition(tokenizers.MARK)
        special = self.tokenizer.special()
        ends = [(rest.find(word), word) for word in (special.get(i) for i in self.tokenizer.stop) if word]
        if not mark or not (ends := [pair for pair in ends if pair[0] >= 0]):
            raise ValueError(
                "chat template: it ends a turn of the assistant with none of the tokenizer's stop tokens"
                f" ({', '.join(special.get(i, str(i)) for i in self.tokenizer.stop)}): {shown.shown(text)}"
            )
        begin = len(text) - len(rest)
        place, word = min(ends)
        return begin, begin + place + len(word)

    def _shown(self, ids: Sequence[int], place: int) -> str:
        part = "".join(text for text, _ in tokenizers.visible(self.tokenizer, ids[place : place + 12]))
        return shown.shown(part)


def writer(
    tokenizer: tokenizers.Tokenizer, template: bool | None = None, tools: Sequence[Mapping[str, Any]] = ()
) -> Writer:
    """Return a writer of conversations.

    Args:
      tokenizer: any.
      template: whether to write by the chat template; None: if the tokenizer has one.
      tools: JSON schemas of functions that the template shows.

    Raises:
      ValueError: ``template`` is True and there is none.
    """
    if template is not False:
        try:
            tokenizer.chat(_ASKED[:1])
            return Writer(tokenizer, True, tuple(tools))
        except chat.NoTemplate:
            if template:
                raise
    return Writer(tokenizer, False, tuple(tools))


def _plain(messages: chat.Messages) -> str:
    return "\n".join(message["content"] for message in messages)
