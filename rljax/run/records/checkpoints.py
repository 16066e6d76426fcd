"""Checkpoints of a run: the complete train state, saved in the background and verified when restored.

A checkpoint is a directory named by its step. It holds ``state``, the arrays of the ``TrainState`` by flat names such
as ``params/policy/embed``, and ``record``, JSON with the caller's extras, the metrics, and the shape, dtype and digest
of each array. Orbax writes the directory under a temporary name and renames it when it is complete. On gs:// it writes
the file ``storage.COMMITTED`` into it instead; a directory without that file is not a checkpoint.

Reading never writes: only ``save``, ``wait`` and ``close`` create, rename or delete anything.
"""

import contextlib
import gc
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rljax import types
from rljax.data import storage
from rljax.host import processes
from rljax.run.records import digests

_STEP = re.compile("0|[1-9][0-9]*")

Like = types.Tree | Callable[[dict[str, Any]], types.Tree]


class CheckpointWarning(UserWarning):
    """A checkpoint cannot be read and an older one is used, or an old one cannot be deleted."""


class CheckpointError(RuntimeError):
    """None of the requested checkpoints can be read, or one cannot be written. Nothing was deleted."""


# --- reading ------------------------------------------------------------------------------------


def _reader(handler: Any) -> ocp.Checkpointer:
    """Return orbax's reader for this process alone: a failure on one process must not block the others."""
    alone = ocp.options.MultiprocessingOptions(primary_host=jax.process_index(), active_processes={jax.process_index()})
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _guarded(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``read(*arguments)``; errors of broken files become a CheckpointError with a message of one line.

    If the store does not respond, the files may be sound: storage.Unavailable is raised and nothing older is tried.
    """
    try:
        return read(*arguments)
    except Exception as error:  # orbax does not document the errors of broken files
        if storage.transient(error):
            raise storage.Unavailable(storage.brief(error)) from error
        text = storage.brief(error)
    # Orbax leaves the failed futures of other arrays behind; their messages would bury this one.
    logger, hook = logging.getLogger("asyncio"), sys.unraisablehook
    disabled, logger.disabled, sys.unraisablehook = logger.disabled, True, lambda unraisable: None
    gc.collect()
    logger.disabled, sys.unraisablehook = disabled, hook
    raise CheckpointError(text)


def hide_tracebacks() -> None:
    """Hide what orbax and tensorstore print after an error, in addition to the CheckpointError that is raised."""
    absl, hook, unraisable = logging.getLogger("absl"), sys.excepthook, sys.unraisablehook
    absl.addFilter(lambda record: record.levelno < logging.ERROR or "/orbax/" not in record.pathname)
    logging.getLogger("asyncio").disabled = True  # failed futures of the other arrays
    # Callbacks of tensorstore, which find an event loop that orbax has closed.
    sys.excepthook = lambda kind, error, trace: _closed(error) or hook(kind, error, trace)
    sys.unraisablehook = lambda ignored: _closed(ignored.exc_value) or unraisable(ignored)


def _closed(error: BaseException | None) -> bool:
    return "Event loop is closed" in str(error)


def _best(steps: Sequence[int], scores: Mapping[int, float]) -> int | None:
    """Return the step with the highest score, the newest among equals; None if no step has a score."""
    ranked = [(scores[step], step) for step in steps if step in scores and not math.isnan(scores[step])]
    return max(ranked)[1] if ranked else None


# --- the checkpointer ---------------------------------------------------------------------------


class Checkpointer(contextlib.AbstractContextManager):
    """Saves and restores the checkpoints of one run.

    Args:
      directory: the directory of the checkpoints, created by the first save.
      max_to_keep: number of newest checkpoints to keep besides the best; with 1 there is no older one to fall back to.
      keep: steps of further checkpoints to keep.
      best: the metric that ranks checkpoints; higher is better.

    Raises:
      ValueError: max_to_keep is below 1.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_to_keep: int = 2,
        keep: Collection[int] = (),
        best: str = "accuracy",
    ):
        if max_to_keep < 1:
            raise ValueError(f"max_to_keep: got {max_to_keep}, must be at least 1")
        self._directory = storage.path(directory)
        self._max_to_keep, self._keep, self._best = max_to_keep, keep, best
        self._writer: ocp.CheckpointManager | None = None
        self._scores: dict[int, float] = {}
        self._last: int | None = None  # the step last saved or restored
        self._unreadable: set[int] = set()  # steps that the last restore could not read

    def __exit__(self, *exception: object) -> None:
        self.close()

    def all_steps(self) -> list[int]:
        """Return the steps of finished checkpoints in ascending order, without one still being written."""
        return sorted(int(name) for name in storage.finished(self._directory) if _STEP.fullmatch(name))

    def latest_step(self) -> int | None:
        """Return the newest finished step, or None."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """Return the finished step with the best metric (the newest among equals), or None if none has the metric."""
        steps = self.all_steps()
        return _best(steps, self._read_scores(steps))

    def save(
        self,
        step: int,
        state: types.TrainState,
        extras: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Copy the state from the devices and write it in the background.

        ``state`` may be donated as soon as this returns. A previous save still in progress is waited for, and its error
        is raised here. After a restore of step k, newer checkpoints are first renamed: unreadable ones to
        ``corrupt-<step>``, sound ones to ``superseded-<step>``.

        Args:
          step: number of finished updates. A second save of the step last saved or restored does nothing.
          state: the train state; every leaf must be an array.
          extras: JSON-able values; tuples are restored as lists.
          metrics: numbers by name, including the metric that ranks checkpoints.

        Returns:
          Whether a save was started.

        Raises:
          ValueError: extras or leaves that cannot be stored, metrics without the ranking one, a step older than the
            last, or a directory with newer steps of which none was restored.
          CheckpointError: the previous save failed.
          storage.Unavailable: the previous save failed because the store did not respond.
        """
        if step == self._last:
            return False
        if self._last is not None and step < self._last:
            raise ValueError(f"step: got {step}, must be above {self._last}, the step last saved or restored")
        if metrics is not None and self._best not in metrics:
            raise ValueError(f"metrics: got {sorted(metrics)}, must include {self._best!r}")
        try:
            plain = json.loads(json.dumps(dict(extras)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"extras: must be JSON-able ({error})") from error
        flat = digests.flatten(state)
        values = digests.by_name(digests.nonempty(flat))
        record = {
            "step": int(step),
            "extras": plain,
            "metrics": None if metrics is None else {name: float(value) for name, value in metrics.items()},
            "leaves": {name: [list(x.shape), str(x.dtype), values.get(name)] for name, x in flat.items()},
        }
        self.wait()
        writer = self._writer or self._open(step)
        if metrics is not None:
            self._scores[step] = float(metrics[self._best])
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(digests.nonempty(flat)),
            record=ocp.args.JsonSave({**record, "crc32": digests.crc(record)}),
        )
        self._writing(step, writer.save, step, args=arguments, force=True)
        self._last = step
        return True

    def restore(self, like: Like, step: int | None = None) -> tuple[types.TrainState, dict[str, Any], int]:
        """Restore the newest readable checkpoint, or that of ``step``.

        Values are restored bit for bit, in the structure of ``like`` and with its shardings, which may differ from the
        saved ones. A CheckpointWarning names each checkpoint that cannot be read.

        Args:
          like: a ``TrainState`` of jax.ShapeDtypeStruct, or a function from the extras to one, whose exceptions are not
            caught. A leaf without sharding is replicated on the mesh of the others, or placed on the first device.
          step: the step to restore; None restores the newest readable checkpoint.

        Returns:
          The state, the extras and the step.

        Raises:
          FileNotFoundError: there is no checkpoint, or none of ``step``.
          ValueError: a sound checkpoint differs from ``like``; the message lists the leaves.
          CheckpointError: no checkpoint can be read; the message lists the errors.
          storage.Unavailable: the store did not respond.
        """
        state, record, failures = self._first(step, lambda record: self._read_tree(like, "", record, whole=True))
        self.close()  # the next save starts from what was restored
        self._last, self._unreadable = record["step"], set(failures)
        return state, record["extras"], record["step"]

    def restore_params(
        self, like: Like, step: int | None = None, field: str = "params"
    ) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Restore only ``TrainState.params``, or ``frozen``, without effect on later saves.

        Args:
          like: as in ``restore``, with the structure of ``params``; modules may be left out.
          step: as in ``restore``.
          field: "params" or "frozen".

        Returns:
          The parameters, the extras and the step.

        Raises:
          Exception: as ``restore``.
        """
        params, record, _ = self._first(step, lambda record: self._read_tree(like, f"{field}/", record))
        return params, record["extras"], record["step"]

    def restore_part(self, like: types.TrainState, step: int) -> types.TrainState:
        """Restore the leaves that ``like``, a part of the state, has; otherwise as ``restore_params``."""
        return self._first(step, lambda record: self._read_tree(like, "", record))[0]

    def read_extras(self, step: int | None = None) -> dict[str, Any]:
        """Return the extras of the newest checkpoint with a readable record, or of ``step``. Raises as ``restore``."""
        return self._first(step, lambda record: record["extras"])[0]

    def wait(self) -> None:
        """Wait for the save in progress; raise CheckpointError or storage.Unavailable if it failed."""
        if self._writer is not None:
            self._writing(self._last, self._writer.wait_until_finished)
            self._delete_old()

    def close(self) -> None:
        """Wait for the save in progress and release the writer; a later save reopens it."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._writing(self._last, writer.close)
            self._delete_old()

    def _open(self, step: int) -> ocp.CheckpointManager:
        """Rename checkpoints newer than the restored step, then create orbax's manager."""
        steps = processes.from_leader(self.all_steps)
        newer = [s for s in steps if s > (step - 1 if self._last is None else self._last)]
        if newer and self._last is None:
            raise ValueError(f"step: got {step}, but {self._directory} has steps {newer}: restore one of them first")
        processes.from_leader(lambda: self._move_aside(newer))
        self._scores = processes.from_leader(lambda: self._read_scores([s for s in steps if s not in newer]))
        self._writer = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                cleanup_tmp_directories=True,  # incomplete checkpoints of a killed run
                save_root_metadata=False,
            ),
        )
        return self._writer

    def _writing(self, step: int | None, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except Exception as error:
            message = f"the checkpoint of step {step} in {self._directory} was not written ({storage.brief(error)})"
            kind = storage.Unavailable if storage.transient(error) else CheckpointError
            raise kind(f"{message}; older checkpoints are intact") from error

    def _move_aside(self, steps: Sequence[int]) -> None:
        # Newest first: a kill between two renames leaves the older ones unchanged.
        for step in reversed(steps):
            name = f"{'corrupt' if step in self._unreadable else 'superseded'}-{step}"
            while storage.exists(self._directory / name):
                name += "-again"
            storage.move(self._directory / str(step), self._directory / name)
        storage.empty_trash(self._directory)

    def _delete_old(self) -> None:
        """Delete old checkpoints; orbax's deletion would remove the commit mark at any point."""
        if processes.leader():
            steps = self.all_steps()
            for step in set(steps[: -self._max_to_keep]) - {_best(steps, self._scores), *self._keep}:
                try:
                    storage.remove(self._directory / str(step))
                except OSError as error:  # the run continues; the next save tries again
                    warnings.warn(
                        f"an old checkpoint was not deleted: {storage.brief(error)}", CheckpointWarning, stacklevel=3
                    )

    def _first(self, step: int | None, read: Callable[[dict[str, Any]], Any]) -> tuple[Any, dict[str, Any], dict]:
        """Return (read(record), record, errors by unreadable step) of the first step that can be read."""
        self.wait()
        steps = processes.from_leader(self.all_steps)
        if not steps:
            raise FileNotFoundError(f"no checkpoint in {self._directory}")
        if step is not None and step not in steps:
            raise FileNotFoundError(f"step: got {step}, but {self._directory} has steps {steps}")
        failures: dict[int, CheckpointError] = {}
        for candidate in steps[::-1] if step is None else [step]:
            try:
                record = _guarded(processes.from_leader, lambda number=candidate: self._read_record(number))
                value = read(record)
            except CheckpointError as error:
                failures[candidate] = error
                continue
            for failed, error in failures.items():
                text = f"checkpoint of step {failed} in {self._directory} cannot be read ({error})"
                warnings.warn(f"{text}; falling back to step {candidate}", CheckpointWarning, stacklevel=3)
            return value, record, failures
        errors = "\n  ".join(f"step {failed}: {error}" for failed, error in failures.items())
        raise CheckpointError(
            f"no checkpoint in {self._directory} can be read; nothing was deleted. Errors:\n  {errors}"
        )

    def _read_record(self, step: int) -> dict[str, Any]:
        with contextlib.closing(_reader(ocp.JsonCheckpointHandler())) as reader:
            record = dict(reader.restore(self._directory / str(step) / "record"))
        if record.pop("crc32") != digests.crc(record) or record["step"] != step:
            raise ValueError("the record does not match its checksum")
        return record

    def _read_scores(self, steps: Sequence[int]) -> dict[int, float]:
        scores = {}
        for step in steps:
            with contextlib.suppress(Exception):  # without a readable metric it is not the best
                scores[step] = float(self._read_record(step)["metrics"][self._best])
        return scores

    def _read_tree(self, like: Like, prefix: str, record: dict[str, Any], whole: bool = False) -> types.Tree:
        target = like(record["extras"]) if callable(like) else like
        flat = {prefix + name: leaf for name, leaf in digests.flatten(target).items()}
        self._check(flat, record, whole)
        values = _guarded(self._read_arrays, flat, record)
        return jax.tree.unflatten(jax.tree.structure(target), [values[name] for name in flat])

    def _check(self, flat: Mapping[str, Any], record: Mapping[str, Any], whole: bool) -> None:
        """Raise ValueError if a sound checkpoint has other leaves than expected; older ones would differ as well."""
        saved = {name: (tuple(shape), dtype) for name, (shape, dtype, _) in record["leaves"].items()}
        expected = {name: (tuple(leaf.shape), str(leaf.dtype)) for name, leaf in flat.items()}
        lines = []
        for name in sorted(saved.keys() | expected.keys() if whole else expected.keys()):
            if saved.get(name) != expected.get(name):
                left = f"saved {saved[name]}" if name in saved else "not saved"
                right = f"expected {expected[name]}" if name in expected else "not expected"
                lines.append(f"\n  {name}: {left}, {right}")
        if lines:
            more = f"\n  and {len(lines) - 10} more" if len(lines) > 10 else ""
            checkpoint = f"the checkpoint of step {record['step']} in {self._directory}"
            raise ValueError(f"like: differs from {checkpoint}:{''.join(lines[:10])}{more}")

    def _read_arrays(self, flat: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, types.Array]:
        requested = {name: getattr(leaf, "sharding", None) for name, leaf in flat.items()}
        named = [s for s in requested.values() if isinstance(s, jax.sharding.NamedSharding)]
        first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        default = jax.sharding.NamedSharding(named[0].mesh, jax.sharding.PartitionSpec()) if named else first
        sharding = {name: requested[name] or default for name in flat}
        stored = digests.nonempty(flat)
        like = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding[name]) for name, x in stored.items()}
        arguments = ocp.args.PyTreeRestore(
            item=like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
        )
        with contextlib.closing(_reader(ocp.PyTreeCheckpointHandler())) as reader:
            path = self._directory / str(record["step"]) / "state"
            values = processes.together(lambda: reader.restore(path, args=arguments))
        wrong = [name for name, digest in digests.by_name(values).items() if digest != record["leaves"][name][2]]
        if wrong:
            raise ValueError(f"arrays do not match their digests: {', '.join(sorted(wrong)[:5])}")
        empty = {name: np.zeros(x.shape, x.dtype) for name, x in flat.items() if name not in stored}
        return {**values, **jax.device_put(empty, {name: sharding[name] for name in empty})}
