"""Settings of host worlds, groups that constructors take as ``settings.flat`` arguments."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rljax.environments.questions import recipe
from rljax.environments.verifiers import answers, rewards
from rljax.environments.worlds.host import calls
from rljax.language import settings
from rljax.language.settings import Count, Size, setting


@dataclasses.dataclass(frozen=True)
class Lengths:
    """The lengths of episodes, tokens."""

    turns: Count = setting(4, "The most turns, the answer included.")
    turn_length: Count = setting(128, "The most tokens of a turn, its end included.")
    reply_length: Count = setting(128, "The most tokens between two turns, the chat template's included.")
    prompt_length: Size = setting(0, "L, tokens; 0: the longest prompt of the first problems, rounded up.")
    completion_length: Size = setting(0, "T, tokens of all turns and replies; 0: as many as the turns can need.")
    exact: bool = setting(
        True, "Refuse a chat template that writes earlier turns differently later, such as one that drops thoughts."
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class Own:
    """Settings of worlds that are classes of users."""

    arguments: Mapping[str, Any] | None = setting(None, "What the constructor of the class gets by name.")
    path: str | tuple[str, ...] = setting(
        "", "Files whose rows are the examples, as in ``jsonl``; '': the examples are numbers from 0 on."
    )
    examples: int = setting(0, "How many numbers; 0: the attribute ``examples`` of the class, else 1,000.")
    heldout: float | str = setting(
        0.1, "The fraction of examples that is held out, of rows by a hash; or held-out files."
    )
    max_turns: int = setting(8, "The most turns of an episode.")
    turn_length: int = setting(64, "The most tokens of a turn, its end included.")
    reply_length: int = setting(64, "The most tokens between two turns, the chat template's included.")
    prompt_length: int = setting(0, "L, tokens; 0: the longest prompt of the first problems, rounded up.")
    completion_length: int = setting(0, "T, tokens of all turns and replies; 0: as many as the turns can need.")
    chat: bool | None = setting(None, "Write by the tokenizer's chat template: True, False, None (if it has one).")
    exact: bool = setting(
        True, "Refuse a chat template that writes earlier turns differently later, such as one that drops thoughts."
    )
    demonstration: str = setting("messages", "The column with a conversation to imitate, of rows that have it.")

    def __post_init__(self):
        for field in ("max_turns", "turn_length", "reply_length", "prompt_length", "completion_length", "examples"):
            value, low = getattr(self, field), int(field in ("max_turns", "turn_length", "reply_length"))
            if value < low:
                raise ValueError(f"{field}={value}: must be {low} or more")
        if 0 < self.completion_length < self.turn_length:
            raise ValueError(f"completion_length={self.completion_length}: a turn has up to {self.turn_length} tokens")
        if not isinstance(self.heldout, str) and not 0 < self.heldout < 1:
            raise ValueError(f"heldout={self.heldout}: must be above 0 and below 1, or a file")

    @property
    def lengths(self) -> Lengths:
        """The lengths of episodes."""
        sizes = self.turn_length, self.reply_length, self.prompt_length, self.completion_length
        return Lengths(self.max_turns, *sizes, self.exact)


@dataclasses.dataclass(frozen=True)
class Games:
    """Problems that are seeds."""

    size: Count = setting(1000, "Number of training problems, each a seed.")
    heldout: Count = setting(100, "Number of held-out problems.")
    chat: bool | None = setting(None, "Write by the chat template: True, False, None (if the tokenizer has one).")

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class Asked:
    """How questions are asked, and their answers judged."""

    prompt: str = setting("{question}", "The question: a column, or a text with columns in braces.")
    answer: str = setting("answer", "The reference that the reward function compares with, likewise.")
    reward: rewards.Reward = setting("exact", "As in ``jsonl``.")
    _: dataclasses.KW_ONLY
    heldout: float | recipe.Paths = setting(0.1, "The fraction of prompts that is held out, or files.")
    chat: recipe.Chat = setting(
        None,
        "As in ``jsonl``; False: plain text, in which the tools are named after the question. None with the form "
        '"tags": plain text if the tokenizer has no chat template; with the others, it must have one, '
        "which shows tools.",
    )
    form: calls.Form = setting("json", 'How calls are written: "json", "bare" or "tags"; see ``calls``.')
    weights: dict[str, float] | None = setting(
        None,
        'Of "calls", "malformed", "failed" and "retries" in the reward. {"retries": 0.1} pays for a search that is '
        "tried again (ReZero, arXiv 2504.11001).",
    )
    formats: answers.Formats = setting(None, 'How "number" and "boxed" read a final answer.')
    instruction: str | None = setting(
        None, "Text after the question; None: a sentence that asks for the format of the answer."
    )
    final: recipe.Final = setting("", "The part of the answer that is the reference, as in ``jsonl``.")

    @property
    def template(self) -> bool | None:
        """Whether to write by the chat template; None: if the tokenizer has one."""
        return False if self.chat is False else None if self.form == "tags" else True


OWN = Own()
ASKED = Asked()
NUMBERS = Asked(reward="number")
GAMES = Games()
TURNS = Lengths()
PASSAGES = Lengths(reply_length=512)
LONG = Lengths(turns=10, turn_length=64, reply_length=256)  # of games
