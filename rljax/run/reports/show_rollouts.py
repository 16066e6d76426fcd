"""Rollouts: show what a run sampled, the completions of a prompt together.

    python -m rljax rollouts DIR [--step N] [--prompt TEXT|INDEX] [--count N] [--colour advantage]

In a terminal tokens are blue above 0 and orange below (a ratio: 1); entropy and KL have one color. NO_COLOR=1 shows the
texts alone.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.panel
import rich.text
from absl import flags

from rljax.data import storage
from rljax.run import terminal
from rljax.run.reports import completions, runs

COLOURS = ("advantage", "ratio", "entropy", "kl", "logp", "none")
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
    records = _records(source) if isinstance(source, str | os.PathLike) else [dict(record) for record in source]
    try:
        chosen = [record for record in records if _asked(record, prompt)]
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
                terminal.text(group[0]["prompt"], "bold"),
                [_panel(record, colour, scale) for record in group],
            )
            for group in completions.groups(rows).values()
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"step {step}: a record is not a rollout ({type(error).__name__}: {error})") from error
    console.print(
        f"step {step}: {min(count, len(shown))} of {len(shown)} logged prompts, {len(rows)} completions",
        highlight=False,
    )
    for text, panels in shown[:count]:
        console.print(text)
        console.print(*panels, sep="")


def _records(source: runs.Path) -> list[runs.Record]:
    path = storage.path(source)
    path = path / "rollouts.jsonl" if storage.is_dir(path) else path
    if not storage.exists(path):
        raise FileNotFoundError(f"no rollouts in {path}")
    return runs.log(path)


def _asked(record: Mapping[str, Any], prompt: str | None) -> bool:
    return prompt is None or prompt == str(record.get("index")) or prompt in record["prompt"]


def _panel(record: Mapping[str, Any], colour: str, scale: float) -> rich.panel.Panel:
    title = terminal.text("  ".join(completions.facts(record)))
    border = _BORDERS.get(record.get("outcome", ""), "yellow")
    return rich.panel.Panel(_tokens(record, colour, scale), title=title, title_align="left", border_style=border)


def _tokens(record: Mapping[str, Any], colour: str, scale: float) -> rich.text.Text:
    """Return a completion with colored tokens; without their numbers, its text."""
    tokens = record.get("tokens", {})
    values = completions.spread(tokens).get(colour)
    if values is None:
        return terminal.text(record["completion"])
    out, half = rich.text.Text(), len(tokens["text"]) // 2
    for i, (text, value) in enumerate(zip(tokens["text"], values, strict=True)):
        if i == half and tokens.get("omitted"):
            out.append(f" [{tokens['omitted']} tokens] ", "dim")
        out.append_text(terminal.text(text, _style(_amount(colour, value) / scale, colour)))
    return out


def _amount(colour: str, value: float) -> float:
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
    if len(argv) != 2:
        raise ValueError("expected one argument: a work directory or a rollouts.jsonl")
    values = flags.FLAGS
    show(argv[1], step=values.step, prompt=values.prompt, count=values.count, colour=values.colour)
