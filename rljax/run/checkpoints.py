"""Checkpoints of a run: the whole train state, with what is needed to read it again.

A checkpoint is a directory named by its step: ``state``, the arrays of the ``TrainState`` by flat names such
as ``params/policy/embed``, and ``record``, JSON with the caller's extras, the metrics and the shape, dtype and digest
of each array. Orbax writes it in the background under a temporary name and renames it when whole;
on gs:// it writes ``storage.COMMITTED`` into it instead, and what lacks that is no checkpoint. It
does not notice flipped bytes inside array files, hence the digests.
Reading never writes: only ``save`` (and what ends one) creates, renames or deletes anything.
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
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rljax import types
from rljax.data import storage
from rljax.host import processes

_STEP = re.compile("0|[1-9][0-9]*")

Like = types.Tree | Callable[[dict[str, Any]], types.Tree]


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read and an older one is used, or an old one could not be deleted."""


class CheckpointError(RuntimeError):
    """No checkpoint asked for can be read, or one cannot be written. Nothing was deleted."""


# --- names and digests of leaves ---------------------------------------------------------------


def _flatten(tree: types.Tree) -> dict[str, Any]:
    """Return the leaves of a tree by name, ``opt_state/0/mu/policy/embed``."""
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            raise ValueError(f"state: {name} is {leaf!r}; every leaf must be an array")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"state: {name} is a typed key; keep jax.random.key_data of it")
        if name in flat:
            raise ValueError(f"state: two leaves are called {name}")
        flat[name] = leaf
    return flat


def _words(leaf: types.Array) -> types.Array:
    """Return the bits of an array as uint32 words, one (or two, last axis) per element."""
    size = leaf.dtype.itemsize
    if size > 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(leaf, {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[size])
    return leaf.astype(jnp.uint32)


def _digest(leaf: types.Array) -> types.Array:
    """Return sum_i w_i x_i mod 2^32 over the words x of an array, w_i an odd hash of the place i.

    An odd factor is invertible mod 2^32, so one changed element always shows; several changed
    ones go unseen with probability 2^-32. Addition mod 2^32 has no order, so no sharding matters.
    """
    words = _words(jax.device_put(leaf, jax.memory.Space.Device))  # an offloaded one lies in the host's memory
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        place = place * np.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    weight = place * np.uint32(0x9E3779B1)
    weight = (weight ^ (weight >> 15)) * np.uint32(0x85EBCA77)
    weight = (weight ^ (weight >> 13)) | np.uint32(1)
    return jnp.sum(words * weight, dtype=jnp.uint32)


_digests = jax.jit(lambda flat: jax.tree.map(_digest, flat))


def _digest_by_name(flat: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in jax.device_get(_digests(dict(flat))).items()}


def _stored(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {name: leaf for name, leaf in flat.items() if math.prod(leaf.shape) > 0}  # stores refuse empty arrays


def _crc(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _reader(handler: Any) -> ocp.Checkpointer:
    """Return orbax's reader for this process alone: what one cannot read must not keep the others waiting."""
    alone = ocp.options.MultiprocessingOptions(primary_host=jax.process_index(), active_processes={jax.process_index()})
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _guarded(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return read(*arguments), turning whatever broken files make it raise into a CheckpointError of one line.

    A store that does not answer says nothing of the files: storage.Unavailable, and nothing older is tried.
    """
    try:
        return read(*arguments)
    except Exception as error:  # what a broken file makes a reader raise is documented nowhere
        if storage.transient(error):
            raise storage.Unavailable(storage.brief(error)) from error
        text = storage.brief(error)
    # Orbax leaves the other arrays' failed futures behind, which would bury our one line in theirs.
    logger, hook = logging.getLogger("asyncio"), sys.unraisablehook
    disabled, logger.disabled, sys.unraisablehook = logger.disabled, True, lambda unraisable: None
    gc.collect()
    logger.disabled, sys.unraisablehook = disabled, hook
    raise CheckpointError(text)


# --- which to keep -----------------------------------------------------------------------------


def _best(steps: Sequence[int], scores: Mapping[int, float]) -> int | None:
    """Return the step with the highest score, the newest among equals; None where none has a score."""
    ranked = [(scores[step], step) for step in steps if step in scores and not math.isnan(scores[step])]
    return max(ranked)[1] if ranked else None


# --- the checkpointer --------------------------------------------------------------------------


class Checkpointer(contextlib.AbstractContextManager):
    """Saves and restores the checkpoints of one run.

    Args:
        directory: where the checkpoints lie; made by the first save.
        max_to_keep: how many of the newest to keep besides the best; with 1 there is no falling back.
        save_interval: ``save`` without ``force`` acts on steps divisible by it.
        best: the metric, higher is better, that names the best checkpoint.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, max_to_keep: int = 2, save_interval: int = 1, best: str = "accuracy"
    ):
        for name, value in (("max_to_keep", max_to_keep), ("save_interval", save_interval)):
            if value < 1:
                raise ValueError(f"{name}: got {value}, must be at least 1")
        self._directory = storage.path(directory)
        self._max_to_keep, self._save_interval, self._best = max_to_keep, save_interval, best
        self._writer: ocp.CheckpointManager | None = None
        self._scores: dict[int, float] = {}
        self._last: int | None = None  # the step last saved or restored
        self._unreadable: set[int] = set()  # steps passed over by the last restore

    def __exit__(self, *exception: object) -> None:
        self.close()

    def all_steps(self) -> list[int]:
        """Return the finished steps, in order; one still being written is not among them."""
        return sorted(int(name) for name in storage.finished(self._directory) if _STEP.fullmatch(name))

    def latest_step(self) -> int | None:
        """Return the newest finished step, None where there is none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """Return the finished step with the best metric (newest among equals), None where none carries it."""
        steps = self.all_steps()
        return _best(steps, self._read_scores(steps))

    def save(
        self,
        step: int,
        state: types.TrainState,
        extras: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        force: bool = False,
    ) -> bool:
        """Copy the state off the devices and write it in the background; return whether it will be.

        ``state`` may be donated as soon as this returns. An earlier save still under way is waited for and
        its error raised here. After a restore of step k, what lies beyond k is moved aside first: what
        could not be read to ``corrupt-<step>``, a sound checkpoint to ``superseded-<step>``.

        Args:
            step: updates finished. A second save of the step just saved or restored does nothing.
            state: every leaf an array.
            extras: JSON-able; tuples come back as lists.
            metrics: numbers, among them the one that ranks checkpoints.
            force: save whatever ``save_interval`` says.

        Raises:
            ValueError: extras or leaves that cannot be stored, metrics without the ranking one, a step
                older than the last, a directory with newer steps none of which was restored.
        """
        if step == self._last or (not force and step % self._save_interval):
            return False
        if self._last is not None and step < self._last:
            raise ValueError(f"step: got {step}, must be above {self._last}, the step last saved or restored")
        if metrics is not None and self._best not in metrics:
            raise ValueError(f"metrics: got {sorted(metrics)}, must hold {self._best!r}")
        try:
            plain = json.loads(json.dumps(dict(extras)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"extras: must hold only what JSON can ({error})") from error
        flat = _flatten(state)
        digests = _digest_by_name(_stored(flat))
        record = {
            "step": int(step),
            "extras": plain,
            "metrics": None if metrics is None else {name: float(value) for name, value in metrics.items()},
            "leaves": {name: [list(x.shape), str(x.dtype), digests.get(name)] for name, x in flat.items()},
        }
        self.wait()
        writer = self._writer or self._open(step)
        if metrics is not None:
            self._scores[step] = float(metrics[self._best])
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(_stored(flat)), record=ocp.args.JsonSave({**record, "crc32": _crc(record)})
        )
        self._writing(step, writer.save, step, args=arguments, force=True)  # whether to save was decided above
        self._last = step
        return True

    def restore(self, like: Like, step: int | None = None) -> tuple[types.TrainState, dict[str, Any], int]:
        """Return (state, extras, step) of the newest checkpoint that can be read, or of ``step`` alone.

        Values come back bit for bit in the structure of ``like`` under its shardings, whatever
        those were when saved. Each checkpoint passed over is named by a CheckpointWarning.

        Args:
            like: a ``TrainState`` of jax.ShapeDtypeStruct (no sharding: replicated on the others' mesh, or
                the first device), or a function from the extras to one, whose exceptions are not caught.
            step: this step or an error; None for the newest readable.

        Raises:
            FileNotFoundError: no checkpoint at all, or none of ``step``.
            ValueError: a sound checkpoint that differs from ``like``, with the leaves that do.
            CheckpointError: nothing readable, with what was tried.
        """
        state, record, failures = self._first(step, lambda record: self._read_tree(like, "", record))
        self.close()  # the next save starts from what was restored
        self._last, self._unreadable = record["step"], set(failures)
        return state, record["extras"], record["step"]

    def restore_params(self, like: Like, step: int | None = None) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Return (params, extras, step): as ``restore``, with only ``TrainState.params``, for those who do not train.

        ``like`` has the structure of ``params`` and may leave out modules. No effect on later saves.
        """
        params, record, _ = self._first(step, lambda record: self._read_tree(like, "params/", record))
        return params, record["extras"], record["step"]

    def read_extras(self, step: int | None = None) -> dict[str, Any]:
        """Return the extras of the newest checkpoint with a readable record, or of ``step``; raises as ``restore``."""
        return self._first(step, lambda record: record["extras"])[0]

    def wait(self) -> None:
        """Return when the save under way is finished; CheckpointError or storage.Unavailable if it failed."""
        if self._writer is not None:
            self._writing(self._last, self._writer.wait_until_finished)
            self._delete_old()

    def close(self) -> None:
        """Wait for the save under way and release the writer; a later save opens it again."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._writing(self._last, writer.close)
            self._delete_old()

    def _open(self, step: int) -> ocp.CheckpointManager:
        """Move aside what lies beyond the restored step, then start orbax's manager."""
        found = processes.from_leader(self.all_steps)
        beyond = [s for s in found if s > (step - 1 if self._last is None else self._last)]
        if beyond and self._last is None:
            raise ValueError(f"step: got {step}, but {self._directory} has steps {beyond}: restore one of them first")
        processes.from_leader(lambda: self._move_aside(beyond))
        self._scores = processes.from_leader(lambda: self._read_scores([s for s in found if s not in beyond]))
        self._writer = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                cleanup_tmp_directories=True,  # what a killed run left half-written
                save_root_metadata=False,
            ),
        )
        return self._writer

    def _writing(self, step: int | None, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        try:
            call(*arguments, **options)
        except Exception as error:
            said = f"the checkpoint of step {step} in {self._directory} was not written ({storage.brief(error)})"
            kind = storage.Unavailable if storage.transient(error) else CheckpointError
            raise kind(f"{said}; those before it stand") from error

    def _move_aside(self, steps: Sequence[int]) -> None:
        # Newest first, so that a kill between two renames leaves the older ones as they were.
        for step in reversed(steps):
            name = f"{'corrupt' if step in self._unreadable else 'superseded'}-{step}"
            while storage.exists(self._directory / name):
                name += "-again"
            storage.move(self._directory / str(step), self._directory / name)
        storage.empty_trash(self._directory)

    def _delete_old(self) -> None:
        """Keep the newest steps and the best; orbax would delete the mark of a finished one at no certain point."""
        if processes.leader():
            steps = self.all_steps()
            for step in set(steps[: -self._max_to_keep]) - {_best(steps, self._scores)}:
                try:
                    storage.remove(self._directory / str(step))
                except OSError as error:  # no reason to stop; the next save tries again
                    warnings.warn(f"an old checkpoint stays: {storage.brief(error)}", CheckpointWarning, stacklevel=3)

    def _first(self, step: int | None, read: Callable[[dict[str, Any]], Any]) -> tuple[Any, dict[str, Any], dict]:
        """Return (read(record), record, errors by step passed over) of the first step where nothing is broken."""
        self.wait()
        steps = processes.from_leader(self.all_steps)
        if not steps:
            raise FileNotFoundError(f"no checkpoint in {self._directory}")
        if step is not None and step not in steps:
            raise FileNotFoundError(f"step: got {step}, but {self._directory} has steps {steps}")
        failures: dict[int, CheckpointError] = {}
        for candidate in steps[::-1] if step is None else [step]:
            try:
                record = _guarded(processes.from_leader, lambda at=candidate: self._read_record(at))
                value = read(record)
            except CheckpointError as error:
                failures[candidate] = error
                continue
            for failed, error in failures.items():
                text = f"checkpoint of step {failed} in {self._directory} cannot be read ({error})"
                warnings.warn(f"{text}; falling back to step {candidate}", CheckpointWarning, stacklevel=3)
            return value, record, failures
        tried = "\n  ".join(f"step {failed}: {error}" for failed, error in failures.items())
        raise CheckpointError(f"no checkpoint in {self._directory} can be read; nothing was deleted. Tried\n  {tried}")

    def _read_record(self, step: int) -> dict[str, Any]:
        with contextlib.closing(_reader(ocp.JsonCheckpointHandler())) as reader:
            record = dict(reader.restore(self._directory / str(step) / "record"))
        if record.pop("crc32") != _crc(record) or record["step"] != step:
            raise ValueError("the record does not agree with its checksum")
        return record

    def _read_scores(self, steps: Sequence[int]) -> dict[int, float]:
        scores = {}
        for step in steps:
            with contextlib.suppress(Exception):  # no readable record or no metric in it: no claim to be the best
                scores[step] = float(self._read_record(step)["metrics"][self._best])
        return scores

    def _read_tree(self, like: Like, prefix: str, record: dict[str, Any]) -> types.Tree:
        wanted = like(record["extras"]) if callable(like) else like
        flat = {prefix + name: leaf for name, leaf in _flatten(wanted).items()}
        self._check(flat, record, whole=not prefix)
        values = _guarded(self._read_arrays, flat, record)
        return jax.tree.unflatten(jax.tree.structure(wanted), [values[name] for name in flat])

    def _check(self, flat: Mapping[str, Any], record: Mapping[str, Any], whole: bool) -> None:
        """Raise ValueError where a sound checkpoint holds other leaves than wanted: no reason to fall back."""
        saved = {name: (tuple(shape), dtype) for name, (shape, dtype, _) in record["leaves"].items()}
        wanted = {name: (tuple(leaf.shape), str(leaf.dtype)) for name, leaf in flat.items()}
        lines = []
        for name in sorted(saved.keys() | wanted.keys() if whole else wanted.keys()):
            if saved.get(name) != wanted.get(name):
                was = f"saved {saved[name]}" if name in saved else "not saved"
                lines.append(f"\n  {name}: {was}, {f'wanted {wanted[name]}' if name in wanted else 'not wanted'}")
        if lines:
            more = f"\n  and {len(lines) - 10} more" if len(lines) > 10 else ""
            where = f"the checkpoint of step {record['step']} in {self._directory}"
            raise ValueError(f"like: differs from {where}:{''.join(lines[:10])}{more}")

    def _read_arrays(self, flat: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, types.Array]:
        given = {name: getattr(leaf, "sharding", None) for name, leaf in flat.items()}
        named = [s for s in given.values() if isinstance(s, jax.sharding.NamedSharding)]
        alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        default = jax.sharding.NamedSharding(named[0].mesh, jax.sharding.PartitionSpec()) if named else alone
        sharding = {name: given[name] or default for name in flat}
        stored = _stored(flat)
        like = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding[name]) for name, x in stored.items()}
        arguments = ocp.args.PyTreeRestore(
            item=like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
        )
        with contextlib.closing(_reader(ocp.PyTreeCheckpointHandler())) as reader:
            place = self._directory / str(record["step"]) / "state"
            values = processes.together(lambda: reader.restore(place, args=arguments))
        wrong = [name for name, digest in _digest_by_name(values).items() if digest != record["leaves"][name][2]]
        if wrong:
            raise ValueError(f"arrays do not agree with their digests: {', '.join(sorted(wrong)[:5])}")
        empty = {name: np.zeros(x.shape, x.dtype) for name, x in flat.items() if name not in stored}
        return {**values, **jax.device_put(empty, {name: sharding[name] for name in empty})}
