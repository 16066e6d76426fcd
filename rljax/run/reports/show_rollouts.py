"""Rollouts: show what a run sampled, the completions of a prompt together.

    python -m rljax rollouts DIR [--step N] [--prompt TEXT|INDEX] [--count N] [--colour advantage]

In a terminal tokens are blue above 0 and orange below (a ratio: 1); entropy and KL have one color. NO_COLOR=1 shows the
texts alone. A conversation is a line for each message: who wrote it, the text, what the turn was paid. What the world
said has no color; the tokens that a completion was given to begin with are dim. The rows of an episode, seats or
chapters, are in one panel.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.panel
import rich.table
import rich.text
from absl import flags

from rljax.language import messages
from rljax.run.reports import completions, runs, turns
from rljax.run.reports.pages import images, terminal

COLOURS = ("advantage", "ratio", "entropy", "kl", "logp", "token_reward", "none")
_BORDERS = {"correct": "green", "wrong": "red"}
_LOW, _HIGH, _WHITE = np.array([230, 140, 60]), np.array([90, 160, 220]), np.array([255, 255, 255])


def show(
    source: runs.Path | Sequence[Mapping[str, Any]],
    *,
    step: int | None = None,
    prompt: str | None = None,
    count: int = 4,
    colour: str = "advantage",
    console: rich.console.Console | None = None,
) -> None:
    """Print sampled rollouts by prompt: completions with reward and its parts, advantage, outcome, finish.

    Args:
      source: a work directory, a ``rollouts.jsonl``, or records.
      step: the step to show; None: the newest that has such a prompt.
      prompt: index of the prompt in its task, or a part of its text; None shows all.
      count: maximum number of prompts to show.
      colour: the quantity that colors the tokens, one of ``COLOURS``.
      console: where to print; standard output by default.

    Raises:
      FileNotFoundError, ValueError: no file, no rollouts, none of this step or prompt, or a malformed one.
    """
    console = console or rich.console.Console()
    stored = isinstance(source, str | os.PathLike)
    records = runs.records(source, "rollouts") if stored else [dict(record) for record in source]
    try:
        named = prompt in {str(record.get("index")) for record in records}
        asked = {_group(record) for record in records if _asked(record, prompt, named)}
        chosen = [record for record in records if _group(record) in asked]
        if prompt is not None and records and not chosen:
            raise ValueError(f"--prompt={prompt!r}: no logged prompt has this index or text")
        steps = sorted({record["step"] for record in chosen})
        if not steps or (step is not None and step not in steps):
            available = f"{steps[:10]}{' ...' if len(steps) > 10 else ''}"
            raise ValueError(f"step: got {step}, must be one of the logged steps {available}")
        step = steps[-1] if step is None else step
        rows = [record for record in chosen if record["step"] == step]
        scale = _scale(rows, colour)
        shown = [
            (
                terminal.text(images.written(group[0]["prompt"]), "bold"),
                [_panel(rows, colour, scale) for rows in turns.episodes(group)],
            )
            for group in completions.groups(rows).values()
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"step {step}: a record is not a rollout ({type(error).__name__}: {error})") from error
    panels = sum(len(panels) for _, panels in shown)
    what = f"{len(rows)} completions" if panels == len(rows) else f"{panels} episodes, {len(rows)} rows"
    console.print(
        f"step {step}: {min(count, len(shown))} of {len(shown)} logged prompts, {what}",
        highlight=False,
    )
    for text, panels in shown[:count]:
        console.print(text)
        console.print(*panels, sep="")


def _asked(record: Mapping[str, Any], prompt: str | None, index: bool) -> bool:
    return prompt is None or (prompt == str(record.get("index")) if index else prompt in record["prompt"])


def _group(record: Mapping[str, Any]) -> tuple[Any, Any]:
    return record["step"], record.get("group", record["prompt"])


def _panel(episode: list[runs.Record], colour: str, scale: float) -> rich.panel.Panel:
    """Return the panel of an episode; its title is the only row's, or the episode's."""
    border = _BORDERS.get(episode[0].get("outcome", ""), "yellow")
    parts: list[rich.console.RenderableType] = []
    for row in episode:
        title = terminal.text("  ".join([turns.heading(row, episode), *completions.facts(row)]).strip())
        if len(episode) > 1:
            parts.append(title)
        if row["prompt"] != episode[0]["prompt"]:
            parts.append(terminal.text(images.written(row["prompt"]), "bold"))
        parts.append(_conversation(row, colour, scale) if "turns" in row else _tokens(row, colour, scale))
    if len(episode) > 1:
        title = terminal.text(f"episode {episode[0].get('episode')}")
    return rich.panel.Panel(rich.console.Group(*parts), title=title, title_align="left", border_style=border)


def _conversation(record: Mapping[str, Any], colour: str, scale: float) -> rich.table.Table:
    """Return the messages of a row, a line each."""
    out = rich.table.Table.grid(padding=(0, 2, 0, 0), expand=True)
    out.add_column(style="dim", no_wrap=True)
    out.add_column(ratio=1, overflow="fold")
    out.add_column(justify="right", no_wrap=True)
    for message, span in zip(record["turns"], turns.spans(record), strict=True):
        if message["by"] == "world":
            text = terminal.text(message["text"], "italic dim")
        else:
            text = _tokens({**record, "completion": message["text"]}, colour, scale, span)
        out.add_row(message["by"], text, "  ".join(turns.said(message)))
    return out


def _tokens(record: Mapping[str, Any], colour: str, scale: float, span: turns.Span | None = None) -> rich.text.Text:
    """Return a completion, or one of its messages, with colored tokens; without their numbers, its text."""
    tokens = record.get("tokens", {})
    values = completions.spread(tokens).get(colour)
    if values is None or (span is not None and span.start == span.stop):
        return terminal.text(record["completion"])
    count, end = len(tokens["text"]), span.stop - 1 if span else -1
    span = span or turns.Span(0, count, count // 2, tokens.get("omitted", 0))
    out = rich.text.Text()
    for i, (text, value) in enumerate(zip(tokens["text"], values, strict=True)):
        if i == span.cut and span.omitted:
            out.append(f" [{span.omitted} tokens] ", "dim")
        if span.start <= i < span.stop:
            text = text or "\u220e" * (i == end)  # the end of a turn
            given = i < record.get("head", 0)
            style = "italic dim" if given else _style(_amount(colour, value) / scale, colour)
            out.append_text(terminal.text(text, style))
    return out


def _amount(colour: str, value: float | None) -> float:
    if value is None:  # not written by the policy
        return 0.0
    return math.log(max(value, 1e-6)) if colour == "ratio" else value


def _scale(rows: Sequence[Mapping[str, Any]], colour: str) -> float:
    """Return the amount that has the full color."""
    values = [abs(_amount(colour, x)) for r in rows for x in completions.spread(r.get("tokens", {})).get(colour, ())]
    finite = [value for value in values if math.isfinite(value)]
    return max(float(np.quantile(finite, 0.98)), 1e-9) if finite else 1.0


def _style(amount: float, colour: str) -> str:
    if not (strength := min(abs(amount), 1.0)) > 0.05:  # also NaN
        return ""
    end = _LOW if amount < 0 or colour in ("entropy", "kl") else _HIGH
    red, green, blue = (_WHITE + (end - _WHITE) * strength).astype(int)
    return f"black on rgb({red},{green},{blue})"


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_integer("step", None, "Step to show; default: the newest logged.")
    flags.DEFINE_string("prompt", None, "Index of a prompt, or a part of its text; default: all prompts.")
    flags.DEFINE_integer("count", 4, "Maximum number of prompts to show.", lower_bound=1)
    flags.DEFINE_enum("colour", "advantage", COLOURS, "Quantity that colors the tokens.")


def main(argv: Sequence[str]) -> None:
    """Show the rollouts of a work directory."""
    values, source = flags.FLAGS, messages.argument(argv, "a work directory or a rollouts.jsonl")
    show(source, step=values.step, prompt=values.prompt, count=values.count, colour=values.colour)
