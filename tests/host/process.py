"""One of several processes, started by test_multihost.py with the RLJAX_ variables set.

    python tests/host/process.py FOLDER NAME MESH WORDS...

runs ``python -m rljax WORDS``, whose work directory is FOLDER/whole. Then it writes rows, an update and the restored
checkpoint of that run to FOLDER/NAME*. MESH is the size of the axes data and fsdp, such as 4x1.
"""

import contextlib
import json
import pathlib
import sys

import jax
import numpy as np

from rljax import __main__
from rljax.config import files
from rljax.host import processes
from rljax.run import programs
from rljax.run.producers import verified
from rljax.run.records import checkpoints, journals
from rljax.training import sharding


def main(folder, name, mesh, *words):
    """Run, collect rows, update and restore; process 0 writes the arrays, each process its index and device count."""
    with contextlib.suppress(SystemExit):
        __main__.main(words)
    program = build(folder, mesh)
    arrays = updated(folder, program) | restored(folder, program)
    if processes.leader():
        np.savez(folder / f"{name}.npz", **arrays)
    facts = {"process": jax.process_index(), "count": jax.process_count(), "devices": jax.local_device_count()}
    (folder / f"{name}-{jax.process_index()}.json").write_text(json.dumps(facts))


def build(folder, mesh, devices=None):
    """Return the program of the config on a mesh."""
    config = files.load(str(folder / "config.py"))
    config.mesh.data, config.mesh.fsdp = map(int, mesh.split("x"))
    return programs.build(config, devices=devices)


def updated(folder, program):
    """Return rows of the first step, and the parameters before and after an update on ``fixed.npz``, or these rows."""
    step, key = program.steps[0], program.key
    state = step.begin(None, key)
    with verified.verifiers(program.setups[-1].task, program.setups[-1].settings.verifier) as workers:
        rows = verified.Verified(program, step, workers, journals.Journal(), 2)(state)
    arrays = dict(named("rows", rows))
    fixed = folder / "fixed.npz"
    if fixed.exists():  # update on the rows of the first program, so that all updates are comparable
        saved = np.load(fixed)
        layout = sharding.batch_sharding(program.mesh)
        leaves = [saved[name] for name, _ in named("rows", rows)]
        leaves = [processes.global_rows(lambda index, x=x: x[index], x.shape[0], layout) for x in leaves]
        rows = jax.tree.unflatten(jax.tree.structure(rows), leaves)
    arrays |= dict(named("before", state.params))  # the update donates them
    state, metrics = step.update(state, rows, key)
    metrics.pop("rows")
    return arrays | dict(named("after", state.params)) | dict(named("metric", metrics))


def restored(folder, program):
    """Return the newest checkpoint of the run, restored for a program."""
    saver = checkpoints.Checkpointer(folder / "whole" / "checkpoints")
    state, extras, _ = saver.restore(program.steps[0].shape)
    return dict(named("restored", state)) | {"step": np.array(extras["step"])}


def named(prefix, tree):
    """Yield (name, complete array) of each leaf of a tree."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}", processes.fetch(leaf)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
