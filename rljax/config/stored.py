"""Sources that read files: their digests, which are part of a run's identity, and the rows of a group."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rljax import types
from rljax.config import schema
from rljax.data import stored_groups
from rljax.training.phases import Phase
from rljax.transforms.source import files


def digest(phase: Phase[schema.Config]) -> str:
    """Return the digest of the files that the source of a phase names; ValueError if they cannot be read."""
    source = phase.algorithm.source
    assert isinstance(source, files.Stored)
    try:
        return stored_groups.digest(source.file)
    except (ValueError, OSError) as error:
        raise ValueError(f"phase {phase.name!r}, {source.spec}: {error}") from None


def digests(resolved: Sequence[Phase[schema.Config]]) -> dict[str, str]:
    """Return the digests of the files of all phases, by what the config calls them; errors as ``digest``."""
    sources = ((phase, phase.algorithm.source) for phase in resolved)
    return {source.file: digest(phase) for phase, source in sources if isinstance(source, files.Stored)}


def grouped(chosen: schema.Config, algorithm: types.Algorithm, changes: Mapping[str, Any], name: str) -> schema.Config:
    """Return the settings of a phase with the samples of a prompt that its source has, if it does not sample any.

    Raises:
      ValueError: the phase sets another number.
    """
    source, samples = algorithm.source, changes.get("batch", {}).get("samples")
    if source.origin == "demonstrations":
        each = samples or 1
    elif isinstance(source, files.Stored) and source.kind != "rows":
        each = 2 if source.kind == "pairs" else 1
        if samples not in (None, each):
            raise ValueError(f"config.phase.{name}.batch.samples={samples}: {source.spec} has groups of {each}.")
    else:
        return chosen
    return dataclasses.replace(chosen, batch=dataclasses.replace(chosen.batch, samples=each))
