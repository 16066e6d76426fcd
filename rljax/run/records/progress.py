"""The progress line of a run."""

import contextlib
import datetime
import time
from collections.abc import Callable, Mapping
from typing import Any

import rich.console
import rich.live
import rich.text

WIDTH = 100
"""Maximum width of a progress line in columns."""


class Progress(contextlib.AbstractContextManager):
    """A progress line: updated in place in a terminal or notebook, otherwise printed at intervals.

    Args:
      total: steps of the whole run.
      quiet: whether to show nothing.
      console: where to print; standard output by default.
      interval: minimum seconds between two printed lines; they become rarer, up to one a minute in long phases.
      clock: returns the time in seconds.
    """

    def __init__(
        self,
        total: int,
        *,
        quiet: bool = False,
        console: rich.console.Console | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._quiet, self._clock = total, quiet, clock
        self._console = console or rich.console.Console()
        terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._mode = "jupyter" if self._console.is_jupyter else "live" if terminal else "plain"
        self._interval = interval if self._mode == "plain" else 0.25
        self._live: rich.live.Live | None = None
        self._display: Any = None
        self._line, self._shown, self._phase = "", "", ""
        self._shown_at = float("-inf")
        self._start = (0.0, 0)  # time and step from which this phase's speed is measured

    def __exit__(self, *exception: object) -> None:
        self.close()

    def update(
        self, step: int, phase: str, values: Mapping[str, Any], *, tokens_per_second: float | None = None
    ) -> None:
        """Show a step with its metrics, the speed and the time left.

        Args:
          step: the step, from 1.
          phase: the name of its phase.
          values: metrics by name; reward, return, accuracy, entropy, length and turns are shown if present.
          tokens_per_second: the speed, or None.
        """
        if self._quiet:
            return
        now = self._clock()
        if phase != self._phase:
            self.close()
            self._phase, self._start = phase, (now, step)
        if now - self._start[0] < 0.1:  # steps arrive in batches; the first one includes compilation
            self._start = (self._start[0], step)
        count = step - self._start[1]
        left = (now - self._start[0]) / count * (self._total - step) if count else None
        self._line = progress_line(step, self._total, phase, values, tokens_per_second, left)
        if now - self._shown_at >= self._pause(now) or step == self._total:
            self._shown_at = now
            self._show()

    def _pause(self, now: float) -> float:
        """Return the seconds between two lines: printed lines of a phase become rarer, up to one a minute."""
        return self._interval if self._mode != "plain" else max(self._interval, min(60.0, (now - self._start[0]) / 50))

    def close(self) -> None:
        """Show the latest line and end its updates; a later line is printed below it."""
        if self._shown != self._line:
            self._show()
        if self._live is not None:
            self._live.stop()
        self._live = self._display = None

    def _show(self) -> None:
        self._shown = self._line
        if self._mode == "plain":
            print(self._line, file=self._console.file, flush=True)
        elif self._mode == "live":
            if self._live is None:
                self._live = rich.live.Live(console=self._console, refresh_per_second=4)
                self._live.start()
            self._live.update(rich.text.Text(self._line, no_wrap=True, overflow="ellipsis"))
        else:
            from IPython import display  # installed in notebooks only

            bundle = {"text/plain": self._line}
            if self._display is None:
                self._display = display.display(bundle, raw=True, display_id=True)
            else:
                self._display.update(bundle, raw=True)


_ABBREVIATIONS = {
    "reward": "rew",
    "return": "ret",
    "accuracy": "acc",
    "entropy": "ent",
    "length": "len",
    "turns": "trn",
}
_DIGITS = {"reward": ".3f", "return": ".1f", "accuracy": ".3f", "entropy": ".3f", "length": ".1f", "turns": ".1f"}


def progress_line(
    step: int,
    total: int,
    phase: str,
    values: Mapping[str, Any],
    tokens_per_second: float | None = None,
    seconds_left: float | None = None,
) -> str:
    """Return the line of a step, at most ``WIDTH`` characters; labels are abbreviated if necessary.

    Args:
      step: the step, from 1.
      total: steps of the whole run.
      phase: the name of the phase.
      values: metrics by name.
      tokens_per_second: the speed, or None.
      seconds_left: the estimated remaining time, or None.

    Returns:
      The line, without a newline.
    """
    line = ""
    for labels in ({}, _ABBREVIATIONS):
        parts = [f"{phase[:12]} {step:>{len(str(total))}}/{total}"]
        shown = _DIGITS if "reward" in values else {"loss": ".3f", **_DIGITS}  # phases on demonstrations have no reward
        parts += [f"{labels.get(n, n)} {float(values[n]):{d}}" for n, d in shown.items() if n in values]
        if tokens_per_second is not None:
            parts.append(f"{_short(tokens_per_second)} tok/s")
        if seconds_left is not None:
            parts.append(f"{datetime.timedelta(seconds=round(seconds_left))} left")
        line = "  ".join(parts)
        if len(line) <= WIDTH:
            return line
    return line[:WIDTH]


def _short(value: float) -> str:
    """Format a number in about four characters: 950, 12.3k, 1.2M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{suffix}"
    return f"{value:.0f}"
