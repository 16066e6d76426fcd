"""Weights & Biases: scalars, rollouts as a table, pictures, and settings as the run's config."""

import importlib.util
import io
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib import image

from rljax.data import storage
from rljax.host import sinks

_COLUMNS = ("step", "prompt", "completion", "reward", "outcome", "advantage", "finish")


@sinks.sink
def wandb(
    project: str, entity: str = "", group: str = "", mode: Literal["online", "offline"] = "online"
) -> sinks.Opener:
    """Log to a project of Weights & Biases; a resumed run continues its run there.

    The service keeps the first value of a step: what a killed run had logged after its checkpoint stays, and what the
    resumed run repeats, which is equal, is ignored.

    Args:
      project: name of the project.
      entity: user or team; "": the default of the account.
      group: name under which the page groups runs, such as the seeds of one setting.
      mode: "offline" writes to the work directory, from where ``wandb sync`` uploads.
    """
    if importlib.util.find_spec("wandb") is None:
        raise ValueError("the package wandb is not installed: pip install wandb")
    return lambda run: _Run(run, project, entity or None, group or None, mode)


class _Run:
    def __init__(self, run: sinks.Run, project: str, entity: str | None, group: str | None, mode: Any):
        import wandb  # imported only if used: it takes a second and starts a process

        self._wandb: Any = wandb
        marker = run.folder / "wandb.id"
        if run.first <= 1 or not marker.exists():
            storage.write(marker, secrets.token_hex(4).encode())
        self._run: Any = wandb.init(
            project=project,
            entity=entity,
            group=group,
            mode=mode,
            name=run.name,
            id=marker.read_text(),
            resume="allow",
            dir=str(run.folder),
            config=dict(run.settings),
        )

    def scalars(self, log: sinks.Log, step: int, phase: str, values: Mapping[str, float]) -> None:
        self._run.log({sinks.PREFIX[log] + name: value for name, value in values.items()}, step=step)

    def rollouts(self, records: Sequence[Mapping[str, Any]]) -> None:
        rows = [[record.get(column) for column in _COLUMNS] for record in records]
        self._run.log({"rollouts": self._wandb.Table(columns=[*_COLUMNS], data=rows)}, step=records[0]["step"])

    def picture(self, path: pathlib.Path, step: int) -> None:
        pixels = image.imread(io.BytesIO(path.read_bytes()))  # the path may be in an object store
        self._run.log({path.stem: self._wandb.Image(pixels)}, step=step)

    def flush(self) -> None:
        """The process of wandb writes."""

    def close(self) -> None:
        self._run.finish()
