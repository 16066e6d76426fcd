"""One of several processes, started by test_multihost.py with the RLJAX_ variables set.

    python tests/process.py FOLDER NAME MESH      writes rows, an update and a restored checkpoint to FOLDER/NAME*

MESH is the size of the axes data and fsdp, such as 4x1.
"""

import json
import pathlib
import sys

import jax
import numpy as np

from rljax.config import files
from rljax.host import processes
from rljax.run import checkpoints, host_rollouts, programs, verdicts
from rljax.training import sharding


def main(folder, name, mesh):
    """Collect rows, update and restore; process 0 writes the arrays, each process its index and device count."""
    processes.initialize()
    config = files.load(str(folder / "config.py"))
    config.mesh.data, config.mesh.fsdp = map(int, mesh.split("x"))
    program = programs.build(config)
    step, key = program.steps[0], program.key
    state = step.begin(None, key)
    with host_rollouts.verifiers(program.setups[-1]) as workers:
        rows = host_rollouts.rollout(program, step, state, workers, verdicts.Journal(None, 0), chunks=2)
    arrays = dict(named("rows", rows))
    fixed = folder / "fixed.npz"
    if fixed.exists():  # update on the rows of the first run, so that all updates are comparable
        saved = np.load(fixed)
        layout = sharding.batch_sharding(program.mesh)
        leaves = [saved[name] for name, _ in named("rows", rows)]
        leaves = [processes.global_rows(lambda index, x=x: x[index], x.shape[0], layout) for x in leaves]
        rows = jax.tree.unflatten(jax.tree.structure(rows), leaves)
    arrays |= dict(named("before", state.params))  # the update donates them
    state, metrics = step.update(state, rows, key)
    metrics.pop("rows")
    arrays |= dict(named("after", state.params)) | dict(named("metric", metrics))
    whole = folder / "whole" / "checkpoints"
    if whole.exists():
        restored, extras, _ = checkpoints.Checkpointer(whole).restore(step.shape)
        arrays |= dict(named("restored", restored)) | {"step": np.array(extras["step"])}
    if processes.leader():
        np.savez(folder / f"{name}.npz", **arrays)
    facts = {"process": jax.process_index(), "count": jax.process_count(), "devices": jax.local_device_count()}
    (folder / f"{name}-{jax.process_index()}.json").write_text(json.dumps(facts))


def named(prefix, tree):
    """Yield (name, complete array) of each leaf of a tree."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}", processes.fetch(leaf)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
