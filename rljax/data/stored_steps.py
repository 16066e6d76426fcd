"""Steps of a control world in files: flat arrays of trajectories, cut into windows that are trained on.

A file is .npz with the arrays of D4RL (arXiv 2004.07219), an entry for each step: observations ``[N, O]``, actions
``[N]`` int or ``[N, A]`` in [-1, 1], rewards, terminals and timeouts ``[N]``, and, where they are known,
next_observations ``[N, O]`` and infos/action_log_probs ``[N]``; "world" is the name of the task. Where its rules have
``legal``, legal and next_legal ``[N, A]`` bool are the actions that are allowed before and behind a step.

An episode ends at a terminal, behind which its value is 0; or at a timeout or the end of the file, behind which it goes
on. Without next_observations the last step of what goes on is left out, since the state that follows is not known.
"""

import dataclasses
import io
import zipfile
import zlib
from typing import Any, ClassVar

import numpy as np

from rljax.data import storage
from rljax.data.rows import files
from rljax.language import messages

SEEN, TAKEN, PAID, ENDS, CUTS = "observations", "actions", "rewards", "terminals", "timeouts"
NEXT, LOGP, WORLD = "next_observations", "infos/action_log_probs", "world"
LEGAL, LATER = "legal", "next_legal"
_NEEDED = (SEEN, TAKEN, PAID, ENDS)
_BLANK = 1 << 16  # windows; statistics of each are kept of at most so many


@dataclasses.dataclass(eq=False)
class Steps:
    """W windows of at most T steps of an episode, in groups of one: each step of the files is in one window."""

    file: str
    arrays: dict[str, np.ndarray]  # as in files, [N, ...]
    start: np.ndarray  # [W] int32, the first step of a window
    length: np.ndarray  # [W, 1] int32
    time: np.ndarray  # [N] int32, steps of the episode before a step
    window: int  # T
    behaviour_logp: np.ndarray | None  # [W, 1, T + 1] float32, nats
    computed: bool = False  # whether a run has computed these log-probs, which are not in the file
    version: ClassVar[None] = None
    heldout: ClassVar[None] = None
    late: ClassVar[int] = 0

    def __len__(self) -> int:
        """Return W."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, int, int]:
        """W, 1 and T + 1, as behind the last step stands the state that follows."""
        return len(self.start), 1, self.window + 1

    def describe(self) -> str:
        """Return one line for the user."""
        size = messages.size(sum(x.nbytes for x in self.arrays.values()))
        return f"{self.file}: {len(self.time):,} steps in {len(self):,} windows of {self.window}; {size} on the host"

    def at(self, windows: np.ndarray) -> dict[str, Any]:
        """Return windows as arrays ``[B, T + 1, ...]``: observation, action, reward, mask, time; and stopped, ``[B]``.

        Behind the last step of a window the observation is of the state that follows; there the mask is 0.
        """
        length, place = self.length[windows], np.arange(self.window + 1)[None, :]
        last = self.start[windows, None] + np.maximum(length - 1, 0)
        step, inside = np.minimum(self.start[windows, None] + place, last), place < length

        def state(before: str, behind: str) -> np.ndarray:
            return np.where(inside[..., None], self.arrays[before][step], self.arrays[behind][last])

        return {
            "observation": state(SEEN, NEXT),
            "legal": state(LEGAL, LATER) if LEGAL in self.arrays else None,
            "action": self.arrays[TAKEN][step],
            "reward": np.where(inside, self.arrays[PAID][step], 0.0).astype(np.float32),
            "mask": inside.astype(np.float32),
            "time": self.time[step],
            "stopped": self.arrays[ENDS][last[:, 0]],
        }


@dataclasses.dataclass(frozen=True)
class Reader:
    """How the steps of files become windows; of a task whose rules observe ``observed`` numbers."""

    world: str  # name of the task
    observed: int  # O
    actions: Any  # ``control.Actions``
    window: int = 1  # T
    megabytes: int = 4096
    legal: bool = False  # whether the rules say which actions are allowed

    def read(self, file: str) -> Steps:
        """Return the windows of all files, in their order.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: a file is damaged, of another world or of another kind; names the file and the array.
        """
        each = [self._arrays(name) for name, _ in files.expand(file)]
        keys = [*each[0]]
        if uneven := next((name for x in each for name in {*x} ^ {*keys}), ""):
            raise ValueError(f"{file}: some of its files have {uneven!r} and others do not")
        return self._windows(file, {name: np.concatenate([x[name] for x in each]) for name in keys})

    def blank(self, file: str) -> Steps:
        """Return windows with the shapes of a file's, without reading it."""
        whole = hasattr(self.actions, "count")
        arrays = {
            **dict.fromkeys((SEEN, NEXT), np.zeros((1, self.observed), np.float32)),
            TAKEN: np.zeros(1, np.int32) if whole else np.zeros((1, self.actions.size), np.float32),
            PAID: np.zeros(1, np.float32),
            ENDS: np.zeros(1, bool),
        }
        arrays |= dict.fromkeys((LEGAL, LATER), np.ones((1, self.actions.count), bool)) if self.legal else {}
        zero = np.zeros(_BLANK, np.int32)
        return Steps(file, arrays, zero, zero[:, None], np.zeros(1, np.int32), self.window, None)

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of a file, checked, with "next_observations" and with True in "timeouts" at its end."""
        if not name.endswith(".npz"):
            raise ValueError(f"{name}: a store of another kind of rows: steps of a control world are in .npz files")
        path = storage.path(name)
        if storage.size(path) > self.megabytes * 10**6:
            raise ValueError(f"{name}: is larger than megabytes={self.megabytes}")
        needed = (*_NEEDED, *(LEGAL, LATER) * self.legal)
        try:
            with np.load(io.BytesIO(storage.read(path)), allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files if key in (*needed, CUTS, NEXT, LOGP, WORLD)}
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{name}: is damaged, or no .npz file ({storage.brief(error)})") from None
        world = str(arrays.pop(WORLD, self.world))
        if world != self.world:
            raise ValueError(f"{name}: steps of the world {world!r}, and the task is {self.world!r}")
        if missing := [key for key in needed if key not in arrays]:
            raise ValueError(f"{name}: has no array {missing[0]!r}, expected {', '.join(needed)}")
        self._check(name, arrays)
        arrays.setdefault(CUTS, np.zeros(len(arrays[ENDS]), bool))
        arrays[CUTS] = arrays[CUTS] | (np.arange(len(arrays[CUTS])) == len(arrays[CUTS]) - 1)
        if NEXT not in arrays:
            arrays[NEXT] = np.roll(arrays[SEEN], -1, axis=0)
            known = arrays[ENDS] | ~arrays[CUTS]
            arrays[CUTS] = arrays[CUTS] | np.roll(arrays[CUTS] & ~known, -1)  # the step before is then the last
            arrays = {key: x[known] for key, x in arrays.items()}
        if not len(arrays[PAID]):
            raise ValueError(f"{name}: no steps")
        return arrays

    def _check(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Raise ValueError if arrays have other shapes, types or values than the world's steps."""
        count, discrete = len(np.atleast_1d(arrays[PAID])), hasattr(self.actions, "count")
        shapes = dict.fromkeys(arrays, (count,)) | dict.fromkeys({SEEN, NEXT} & {*arrays}, (count, self.observed))
        shapes |= {} if discrete else {TAKEN: (count, self.actions.size)}
        shapes |= dict.fromkeys({LEGAL, LATER} & {*arrays}, (count, getattr(self.actions, "count", 0)))
        for key, x in arrays.items():
            kinds = "b" if key in (ENDS, CUTS, LEGAL, LATER) else "iu" if key == TAKEN and discrete else "f"
            if x.shape != shapes[key] or x.dtype.kind not in kinds:
                what = {"b": "bool", "iu": "integers", "f": "float"}[kinds]
                raise ValueError(
                    f"{name}: {key!r} is {x.dtype} {list(x.shape)}, and task {self.world!r} has {what} "
                    f"{list(shapes[key])}"
                )
            if kinds == "f":
                bad = ~np.isfinite(x.reshape(count, -1)).all(axis=1)
            elif key == TAKEN:
                bad = (x < 0) | (x >= self.actions.count)
            else:
                continue
            if bad.any():
                step = int(np.argmax(bad))
                raise ValueError(f"{name}: {key!r} of step {step} is {messages.shown(x[step].tolist())}")
        if not discrete and count and (most := float(np.abs(arrays[TAKEN]).max())) > 1:
            raise ValueError(f"{name}: {TAKEN!r} reach {most:g}, and those of a control world are in [-1, 1]")
        arrays.update({key: x.astype(np.float32) for key, x in arrays.items() if x.dtype.kind == "f"})
        arrays.update({TAKEN: arrays[TAKEN].astype(np.int32)} if discrete else {})

    def _windows(self, file: str, arrays: dict[str, np.ndarray]) -> Steps:
        ends, step = arrays[ENDS] | arrays[CUTS], np.arange(len(arrays[PAID]), dtype=np.int32)
        first = np.maximum.accumulate(np.where(np.r_[True, ends[:-1]], step, 0))
        time = step - first
        start = step[time % self.window == 0]
        length = np.diff(np.r_[start, len(step)]).astype(np.int32)[:, None]
        steps, logp = Steps(file, arrays, start, length, time, self.window, None), arrays.get(LOGP)
        if logp is not None:
            place = np.arange(self.window + 1)[None, :]
            each = np.where(place < length, logp[np.minimum(start[:, None] + place, len(step) - 1)], 0.0)
            steps.behaviour_logp = each.astype(np.float32)[:, None]
        return steps
