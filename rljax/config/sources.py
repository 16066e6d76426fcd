"""Checks of what a source asks of the rest of a phase: second passes, unequal numbers of rows, single rows."""

from rljax import environments, types
from rljax.algorithms import interpreter
from rljax.config import schema
from rljax.environments import worlds
from rljax.environments.verifiers import worker
from rljax.environments.worlds import supplies


def check(chosen: schema.Config, algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that the task, the settings and the algorithm of a phase stand its source.

    Args:
      chosen: the settings of the phase.
      algorithm: of the phase.
      task: of the phase.
      name: of the phase.

    Raises:
      ValueError: a second pass that cannot run; or the source gives prompts unequal samples, or selects single rows,
        and something needs equal groups.
    """
    _check_again(chosen, algorithm, task, name)
    source, where = algorithm.source, f"config.algorithm (phase {name!r})"
    if source.uneven:
        _check_drawn(chosen, source, task, name)
    if not source.grouped and ("episodes" in supplies.supplies(task) or supplies.rows_of_episode(task) > 1):
        raise ValueError(
            f"{where}: {source.spec} selects single rows, and an episode of task {task.name!r} has several. Use "
            "another config.seam.source."
        )
    if not source.grouped and source.segment:
        raise ValueError(f"{where}: {source.spec} selects single rows, and rows in flight need whole groups.")
    if "used" in source.supplies:
        _check_windows(algorithm, where)
    if source.uneven or not source.grouped:
        for o in algorithm.objectives:
            _check_objective(chosen, algorithm, o, name)


def _check_windows(algorithm: types.Algorithm, where: str) -> None:
    """Check that an algorithm that gets rows that go on leaves out tokens of earlier steps, and compares no rewards."""
    needs, source = interpreter.needs(algorithm), algorithm.source.spec
    if "used" not in needs.extra:
        raise ValueError(
            f"{where}: {source} returns tokens of earlier steps too, which {algorithm.spec} would train on again. Add "
            "config.seam.prepare='+ drop_used()'."
        )
    if needs.siblings:
        raise ValueError(
            f"{where}: {algorithm.spec} compares the samples of a prompt, and those of {source} that go on have no "
            "reward yet. Use an algorithm without a group baseline, such as t_ppo()."
        )


def _check_drawn(chosen: schema.Config, source: types.Source, task: environments.Task, name: str) -> None:
    """Check the rollout of a source that gives prompts unequal numbers of samples."""
    where = f"config.algorithm (phase {name!r})"
    unequal = f"{source.spec} gives the prompts unequal samples"
    if worlds.in_turns(task) or worlds.on_host(task):
        raise ValueError(f"{where}: {unequal}, and task {task.name!r} is a world, which plays equal numbers of each.")
    if source.segment or source.demonstrated:
        other = "rows in flight are of" if source.segment else "demonstrations take the last samples of"
        raise ValueError(f"{where}: {unequal}, and {other} equal groups.")
    if environments.scored_on_host(task) and chosen.verifier.chunks != 1:
        raise ValueError(
            f"config.verifier.chunks={chosen.verifier.chunks} (phase {name!r}): must be 1, as {unequal}, and a chunk "
            "has a fixed number of rows."
        )
    if environments.scored_on_host(task) and worker.grouped(task.reward):
        raise ValueError(
            f"{where}: {unequal}, and the reward function of task {task.name!r} judges batch.samples rows together."
        )


def _check_objective(chosen: schema.Config, algorithm: types.Algorithm, o: types.Objective, name: str) -> None:
    """Check that no minibatch or micro-batch splits a group that an objective reads whole."""
    needs, source = interpreter.objective_needs(o), algorithm.source
    minibatches = o.minibatches or chosen.learner.minibatches
    pieces = minibatches * chosen.learner.microbatches
    if (needs.whole == "group" and pieces > 1) or (needs.siblings and minibatches > 1):
        split = pieces if needs.whole == "group" else minibatches
        raise ValueError(
            f"config.learner.minibatches * config.learner.microbatches = {split} (phase {name!r}): must be 1, as "
            f"{algorithm.spec} reads whole groups, and those of {source.spec} are of unequal sizes."
        )
    if chosen.learner.lanes:
        raise ValueError(
            f"config.learner.lanes={chosen.learner.lanes} (phase {name!r}): must be 0, as the groups of {source.spec} "
            "are of unequal sizes."
        )


def _check_again(chosen: schema.Config, algorithm: types.Algorithm, task: environments.Task, name: str) -> None:
    """Check that a source with a second pass can run: on a task of one turn, whose rows are sampled whole."""
    source = algorithm.source
    if source.again is None:
        return
    where, end = f"config.algorithm (phase {name!r}): {source.spec} has a second pass", f"task {task.name!r}"
    if worlds.in_turns(task) or worlds.on_host(task):
        raise ValueError(f"{where}, which needs a task of one turn; {end} is a world.")
    if chosen.learner.lanes and not source.again.plain:
        raise ValueError(
            f"config.learner.lanes={chosen.learner.lanes} (phase {name!r}): packed rows share a prompt, and "
            f"{source.spec} trains rows of a group under several. Set it to 0."
        )
