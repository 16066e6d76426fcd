"""One process of several: what test_multihost.py starts, with the RLJAX_ variables set.

    python tests/process.py FOLDER NAME MESH      rows, an update and a restored checkpoint, written to FOLDER/NAME-*

MESH is the size of the axes data and fsdp, such as 4x1.
"""

import json
import pathlib
import sys

import jax
import numpy as np

from rljax.config import files
from rljax.host import processes
from rljax.run import checkpoints, host_rollouts, programs
from rljax.training import sharding


def main(folder, name, mesh):
    """Collect, update and restore; process 0 writes the arrays, each process what it saw."""
    processes.initialize()
    config = files.load(str(folder / "config.py"))
    config.mesh.data, config.mesh.fsdp = map(int, mesh.split("x"))
    program = programs.build(config)
    step, key = program.steps[0], program.key
    state = step.begin(None, key)
    with host_rollouts.verifiers(program) as workers:
        rows = host_rollouts.rollout(program, step, state, workers, host_rollouts.Journal(None, 0), chunks=2)
    found = dict(named("rows", rows))
    fixed = folder / "fixed.npz"
    if fixed.exists():  # the rows of the first to come, whatever these are
        saved = np.load(fixed)
        layout = sharding.batch_sharding(program.mesh)
        leaves = [saved[place] for place, _ in named("rows", rows)]
        leaves = [processes.lay_rows(lambda at, x=x: x[at], x.shape[0], layout) for x in leaves]
        rows = jax.tree.unflatten(jax.tree.structure(rows), leaves)
    before = dict(named("before", state.params))
    state, metrics = step.update(state, rows, key)
    metrics.pop("rows")
    found |= before | dict(named("after", state.params)) | dict(named("metric", metrics))
    whole = folder / "whole" / "checkpoints"
    if whole.exists():
        restored, extras, _ = checkpoints.Checkpointer(whole).restore(step.shape)
        found |= dict(named("restored", restored)) | {"step": np.array(extras["step"])}
    if processes.leader():
        np.savez(folder / f"{name}.npz", **found)
    facts = {"process": jax.process_index(), "processes": jax.process_count(), "devices": jax.local_device_count()}
    (folder / f"{name}-{jax.process_index()}.json").write_text(json.dumps(facts))


def named(prefix, tree):
    """Yield the leaves of a tree by name, whole."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}", processes.fetch(leaf)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
