"""The identity of a run: its config, and the code outside rljax that the config reaches.

A work directory contains one run. It is continued only with the same config and code, unless the caller allows the
change. The default work directory has a digest of both in its name.
"""

import base64
import hashlib
import itertools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from rljax.config import files, schema
from rljax.data import documents, storage
from rljax.host import processes, workdirs
from rljax.language import reached

_LONGEST = 60  # maximum length of the words of a name


def default_workdir(config: schema.ConfigDict, code: dict[str, str], base: schema.ConfigDict) -> pathlib.Path:
    """Return runs/NAME-CHANGES-DIGEST, a different folder for each config and code.

    Args:
      config: the config of the run.
      code: the digests of its code outside rljax.
      base: the config of its file, before changes; the name lists the fields in which the two differ.

    Returns:
      A path such as runs/quickstart-rloo-seed1-3f2a9c1b.
    """
    text = files.dumps(config) + (json.dumps(code) if code else "")
    new, old = files.flatten(config), files.flatten(base)
    name = "/".join(part for part in str(config.name).split("/") if part not in ("", ".", "..")) or "run"
    for field in sorted(new, key=lambda f: (f != "config.algorithm", f.count("."), f)):
        word = _word(field, new[field])
        if new[field] != old.get(field) and field != "config.name" and len(name) + len(word) < _LONGEST:
            name += f"-{word}"
    return pathlib.Path("runs") / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _word(field: str, value: Any) -> str:
    """Return a changed field in file names: rloo, seed1, steps10, penalty-none, init-first-300."""
    last = field.rpartition(".")[2]
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = re.sub(r"[\w.]+\.(?=[A-Za-z_]\w*\()", "", text)  # removes the module of a function
    text = text.rstrip("/").rpartition("/")[2].replace("=", "")  # the last part of a path
    text = re.sub(r"[^\w.]+", "-", text, flags=re.ASCII).strip("-.")
    if last in ("algorithm", "task"):
        return text
    return f"{last}-{text}" if isinstance(value, str | list) else f"{last}{text}"


def check_same(config: schema.ConfigDict, code: dict[str, str]) -> None:
    """Raise ValueError in every process if the processes have different configs or different code."""
    first, *others = (json.loads(both) for both in processes.gather(json.dumps([files.dumps(config), code])))
    for process, other in enumerate(others, start=1):
        configs = [files.from_dict(json.loads(dumped)) for dumped, _ in (first, other)]
        if lines := files.differences(*configs) + reached.differences(first[1], other[1]):
            raise ValueError(
                f"process {process} has another config or other code than process 0. Differences:\n  "
                + "\n  ".join(lines)
            )


def claim(
    directory: workdirs.WorkDirectory,
    config: schema.ConfigDict,
    code: dict[str, str],
    *,
    allow_change: bool = False,
    fresh: bool = False,
) -> bytes | None:
    """Become the owner of a work directory that is new or has this run.

    Args:
      directory: the work directory.
      config: the config of the run.
      code: the digests of its code outside rljax.
      allow_change: whether the directory may have a run of another config or code.
      fresh: whether to rename a directory that has a run, and to start anew.

    Returns:
      The serialized tokenizer in the directory, if any.

    Raises:
      ValueError: another process uses it, it has another run (the message lists what differs), it cannot be written,
        or it is to be renamed and is on an object store.
    """
    directory.owner.acquire()
    if fresh and (place := _move_aside(directory)):
        print(f"--fresh: the earlier run is now {place}", flush=True)
        directory.owner.acquire()
    check(directory, config, code, allow_change)
    return directory.read("tokenizer.model")


def check_tokenizer(path: str, tokenizer: bytes, extras: Mapping[str, Any]) -> None:
    """Check that a run has the tokenizer with which a checkpoint was written.

    Args:
      path: the run's work directory.
      tokenizer: what its tokenizer.model has.
      extras: stored with the checkpoint.

    Raises:
      ValueError: they differ.
    """
    recorded = extras.get("tokenizer")
    if isinstance(recorded, str) and base64.b64decode(recorded) != tokenizer:
        raise ValueError(
            f"{path}/tokenizer.model: differs from the tokenizer in the checkpoint of step {extras.get('step')}, with "
            f"which the parameters were trained. Restore the file; python -m rljax convert {path} --target FOLDER "
            "writes the recorded one."
        )


def check(
    directory: workdirs.WorkDirectory, config: schema.ConfigDict, code: dict[str, str], allow_change: bool
) -> None:
    """Raise ValueError, with what differs, if a work directory has a run of another config or of other code."""
    stored = directory.read("config.json")
    if stored is not None:
        where = str(directory.path / "config.json")
        lines = files.differences(files.from_dict(documents.parse_object(stored, where), f"{where}: config"), config)
        recorded = documents.parse_object(directory.read("code.json") or b"{}", str(directory.path / "code.json"))
        lines += reached.differences(recorded, code)
        if lines and not allow_change:
            raise ValueError(
                f"{directory.path} contains a run of another config or of other code. Choose another --workdir, start "
                "anew by --fresh, or continue this run with the changes by --allow_config_change. Differences:\n  "
                + "\n  ".join(lines)
            )


def _move_aside(directory: workdirs.WorkDirectory) -> str:
    """Rename a directory that has a run to NAME.old-1, -2, ..., and give up its ownership; return its new name."""
    path = directory.path
    if not storage.exists(path / "config.json"):
        return ""
    if directory.remote:
        raise ValueError(
            f"--fresh: {path} contains a run, and an object store cannot rename it. Choose another --workdir, or move "
            "the run yourself."
        )
    names = (path.with_name(f"{path.name}.old-{number}") for number in itertools.count(1))
    place = next(name for name in names if not storage.exists(name))
    directory.owner.release()
    storage.move(path, place)
    return str(place)
