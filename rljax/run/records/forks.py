"""Forks: runs that begin with the parameters of another run's checkpoint, ``config.checkpoint.init``.

    runs/first@300     the checkpoint of step 300
    runs/first@warm    the checkpoint at the end of the phase "warm"
    runs/first         the newest checkpoint

The phases that both runs have in common at the start, with equal names and numbers of steps, are skipped if they had
ended at the checkpoint. The fork begins at the end of the last skipped phase, with what a phase takes over from the
previous one: its steps are numbered, and its prompts and random numbers drawn, as if it had run them. Without a skipped
phase it begins at step 0 with the policy's parameters. The tokenizer is that of the other run.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence

from rljax import types
from rljax.config import files, schema
from rljax.data import documents, storage
from rljax.language import parse
from rljax.run import programs
from rljax.run.records import checkpoints, identity

_FIELD = "config.checkpoint.init"


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a fork: ``state`` at the end of the last skipped phase, else ``initial``, the policy's params."""

    step: int
    state: types.TrainState | None
    initial: dict[str, types.Tree]
    note: str


def complete(config: schema.ConfigDict) -> schema.ConfigDict:
    """Return a copy of a config in which ``checkpoint.init`` names a step.

    Raises:
      ValueError: it names no run, or a phase or step of which the run has no checkpoint.
    """
    config = config.copy_and_resolve_references()
    text = config.checkpoint.init
    if not text or _split(text)[1].isdigit():
        return config
    config.checkpoint.init = "{}@{}".format(*place(text))
    return config


def place(text: str, field: str = _FIELD) -> tuple[str, int]:
    """Return the run and the step of a checkpoint named RUN@STEP, RUN@PHASE or RUN.

    Args:
      text: the name.
      field: who gave it, for messages.

    Raises:
      ValueError: it names no run, or a phase or step of which the run has no checkpoint.
    """
    run, selector = _split(text)
    ends = _ends(_config(text, field))
    steps = checkpoints.Checkpointer(storage.path(run) / "checkpoints").all_steps()
    if selector and selector not in ends and not selector.isdigit():
        raise ValueError(f"{field}={text!r}: no phase {selector!r}.{parse.nearest(selector, ends)}")
    step = int(selector) if selector.isdigit() else ends[selector] if selector else max(steps, default=0)
    _check_step(text, step, steps, field)
    return run, step


def tokenizer(config: schema.ConfigDict) -> bytes:
    """Return the serialized tokenizer of the run that a config forks.

    Raises:
      ValueError: there is no such run, or its config asks for another tokenizer.
    """
    text = config.checkpoint.init
    lines = files.differences(_config(text).tokenizer, config.tokenizer)
    if lines:
        raise ValueError(
            f"config.checkpoint.init={text!r}: a fork has the tokenizer of that run, and its config differs:\n  "
            + "\n  ".join(line.removeprefix("config.") for line in lines)
        )
    return storage.read(storage.path(_split(text)[0]) / "tokenizer.model")


def load(program: programs.Program) -> Start:
    """Return the start of a fork, from the checkpoint that its config names.

    Raises:
      ValueError: there is no such checkpoint, its parameters differ from the program's in name, shape or type,
        or all phases would be skipped.
    """
    text = program.settings.checkpoint.init
    run, selector = _split(text)
    step, source = int(selector), _config(text)
    saved = checkpoints.Checkpointer(storage.path(run) / "checkpoints")
    _check_step(text, step, saved.all_steps())
    with contextlib.suppress(checkpoints.CheckpointError):  # which reading the parameters raises
        identity.check_tokenizer(run, program.tokenizer.serialized, saved.read_extras(step))
    count = skipped(program)
    if count == len(program.phases):
        raise ValueError(
            f"config.checkpoint.init={text!r}: all phases had ended by step {step}, so there is nothing to run. Choose "
            "an earlier checkpoint, more steps, or other names of phases."
        )
    state, initial = None, {}
    try:
        if count:
            state = saved.restore_part(_carried(program, count), step)
        else:
            initial = saved.restore_params({"policy": program.steps[0].shape.params["policy"]}, step)[0]
    except ValueError as error:
        raise ValueError(f"config.checkpoint.init={text!r}: this run {str(error).removeprefix('like: ')}") from None
    first = program.phases[count - 1].last if count else 0
    note = f"begins at step {first} with the parameters of {text}"
    if count:
        note += f"; skipped phases: {', '.join(p.name for p in program.phases[:count])}"
    fields = [line.partition(":")[0].removeprefix("config.") for line in files.differences(source, program.config)]
    note += f"; fields that differ from that run: {', '.join(f for f in fields if f != 'checkpoint.init') or 'none'}"
    return Start(first, state, initial, note)


def skipped(program: programs.Program) -> int:
    """Return the number of phases that a fork skips, see the module; ``checkpoint.init`` names a step."""
    text = program.settings.checkpoint.init
    common = itertools.takewhile(
        lambda pair: (pair[0].name, pair[0].last) == pair[1] and pair[0].last <= int(_split(text)[1]),
        zip(program.phases, _ends(_config(text)).items(), strict=False),
    )
    return len(list(common))


def _carried(program: programs.Program, count: int) -> types.TrainState:
    """Return the abstract state that phase ``count`` takes over from the previous one, see ``states.begin``."""
    setup, previous = program.setups[count], program.steps[count - 1]
    shape, start = previous.shape, setup.phase.start
    return shape.replace(
        opt_state=() if start.reset_optimizer else shape.opt_state,
        reference=shape.reference if start.reference == "keep" else None,
        pool=shape.pool if setup.continues(previous.setup) else (),
        algorithm=(),
    )


def _check_step(text: str, step: int, steps: Sequence[int], field: str = _FIELD) -> None:
    if step not in steps:
        shown = ", ".join(map(str, steps)) or "none"
        raise ValueError(f"{field}={text!r}: no checkpoint of step {step}, only of steps {shown}.")


def _split(text: str) -> tuple[str, str]:
    """Return run and selector of ``checkpoint.init``."""
    run, at, selector = text.rpartition("@")
    return (run, selector) if at and "/" not in selector else (text, "")


def _config(text: str, field: str = _FIELD) -> schema.ConfigDict:
    """Return the config of the run that ``text``, the value of ``checkpoint.init``, names."""
    path = storage.path(_split(text)[0]) / "config.json"
    try:
        return files.from_dict(documents.read(path), str(path))
    except FileNotFoundError:
        raise ValueError(f"{field}={text!r}: not the work directory of a run (no {path}).") from None


def _ends(config: schema.ConfigDict) -> dict[str, int]:
    """Return the last step of each phase of a config, in order."""
    return dict(
        zip(config.phases, itertools.accumulate(config.phase[name].steps for name in config.phases), strict=True)
    )
