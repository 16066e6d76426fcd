"""The page of topologies: tpu/TOPOLOGIES.md."""

import pathlib


def write(command: pathlib.Path, rows: list[int]) -> None:
    """Write the page."""
    raise NotImplementedError
