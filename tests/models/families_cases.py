"""Folders of every family of public checkpoints, with the weights that transformers saw."""

import json

import safetensors.numpy

from tests.support.reference import families as reference

_EVERY = json.loads(reference.PATH.read_text())
STORED = {name: _EVERY[name] for name in reference.CONFIGS}
SEEING = {name: _EVERY[name] for name in reference.TOWERS}  # models that read pictures


def write(folder, name, change=None, **config):
    """Write a family's folder with the weights that transformers saw; ``change`` edits the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    made = reference.weights(_EVERY[name]["tensors"])
    safetensors.numpy.save_file(made if change is None else change(made), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**_EVERY[name]["config"], **config}))
    return str(folder)
