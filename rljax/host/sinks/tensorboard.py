"""TensorBoard events: scalars, rollouts as text, pictures, and settings as text and hyper-parameters."""

import contextlib
import pathlib
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.host import sinks

_RESULT = "evaluation/pass_at_1"  # what the table of hyper-parameters shows beside them


@sinks.sink
def tensorboard() -> sinks.Opener:
    """Write events to ``tensorboard/`` in the work directory; ``tensorboard --logdir WORKDIR`` shows them."""
    return Events


class Events:
    """A file of TensorBoard events, written by the calling thread.

    The thread of tensorboardX's own writer dies of the first error, for example of a full disk; the writer's queue
    then fills up, and the run blocks.
    """

    def __init__(self, run: sinks.Run):
        # imported only if used, as the package imports torch if that is installed
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2, summary_pb2

        proto: Any = event_pb2  # generated code
        self._event, self._summary, self._proto = proto.Event, summary, summary_pb2
        self._folder, self._flushed = run.folder / "tensorboard", 0.0
        self._folder.mkdir(parents=True, exist_ok=True)
        # without the step, two files of the same second would have the same name
        self._file = event_file_writer.EventsWriter(str(self._folder / "events"), f".{run.first}")
        start = proto.SessionLog(status=proto.SessionLog.START)  # hides earlier events from this step on
        self._file.write_event(self._event(step=run.first, wall_time=time.time(), session_log=start))
        if run.settings:
            self._settings(run)

    def _settings(self, run: sinks.Run) -> None:
        rows = "".join(f"| {name} | `{value!r}` |\n" for name, value in run.settings.items())
        self._add(self._summary.text("config", f"| field | value |\n| --- | --- |\n{rows}"), run.first)
        plain = {n: v if isinstance(v, bool | int | float | str) else repr(v) for n, v in run.settings.items()}
        for summary in self._summary.hparams(plain, {_RESULT: 0.0}):
            self._add(summary, run.first)

    def scalars(self, log: sinks.Log, step: int, phase: str, values: Mapping[str, float]) -> None:
        """Write scalars, named ``time/...`` and ``evaluation/...`` where they are not metrics."""
        for name, value in values.items():
            self._add(self._summary.scalar(sinks.PREFIX[log] + name, value), step)

    def rollouts(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the rollouts of a step as one text."""
        self._add(self._summary.text("rollouts", "\n---\n".join(map(sinks.markdown, records))), records[0]["step"])

    def picture(self, path: pathlib.Path, step: int) -> None:
        """Write a picture as it is."""
        png = path.read_bytes()
        width, height = struct.unpack(">II", png[16:24])
        image = self._proto.Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)
        self._add(self._proto.Summary(value=[self._proto.Summary.Value(tag=path.stem, image=image)]), step)

    def flush(self) -> None:
        """Store the events on the disk."""
        self._flushed = time.monotonic()
        self._do(self._file.flush)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # raised by ``flush`` before
            self._file.close()

    def _add(self, summary: Any, step: int) -> None:
        """Write an event; the file is flushed at most every two seconds."""
        self._do(self._file.write_event, self._event(step=step, wall_time=time.time(), summary=summary))
        if time.monotonic() > self._flushed + 2:
            self.flush()

    def _do(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder)) from error
