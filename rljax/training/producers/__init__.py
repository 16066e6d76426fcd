"""Producers: where the rows of a step come from. A phase has one, and nothing else asks what kind of work its task is.

``completions``     Completions of prompts, with the source's own choices, and of prompts edited for a second pass.
``segments``        Rows in flight, continued by one segment a step, of completions or of conversations.
``episodes``        Episodes of a world inside the program: conversations, or chapters.
``acting``          Trajectories of a control world.
``turns``           Conversations with a host world: their turns are decoded here, and answered on the host.
``demonstrations``  Demonstrations of a task or of a world.
``stored``          Rows of files.
``play``            Episodes as rows: problems begun, conversations or chapters sampled, payments put on tokens.
``world_checks``    A world before anything compiles: what its functions return, on shapes and types.
"""

from typing import Protocol

from rljax import environments, types
from rljax.environments import traits
from rljax.training import phases
from rljax.training.producers import acting, completions, demonstrations, episodes, segments, stored, turns


class Producer(Protocol):
    """Yields the rows of a phase's steps."""

    @property
    def traced(self) -> bool:
        """Whether the compiled program computes the rows, so that rollout and update can be one program."""
        ...

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step, if no worker process is needed; ``key`` is the run's root key."""
        ...

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return what the producer tells of the rows of a step, scalars by name."""
        ...

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step, for ``Source.init``; traced, never computed."""
        ...

    def check(self, key: types.Key) -> types.Rollout:
        """Run the task as a step does, without a model; return the rows of a step before the update, from shapes.

        Raises:
          CodeError: an exception inside the task, or a result of another shape or dtype.
          ValueError: the task does not have what the source reads.
        """
        ...


def refused(task: environments.Task) -> dict[str, str]:
    """Return what the producer of a task cannot do, by name, and why.

    The names are what a source, a file or a sampler may ask: "again", a second pass; "head" and "demonstrated",
    completions that are given in part or whole; "uneven" numbers of samples; "segment", rows in flight, and "early", a
    segment that ends with the first groups; "stored" rows; rows of "demonstrations"; "compact" decoding; fewer "slots"
    than rows.
    """
    about, name = traits.traits(task), f"task {task.name!r}"
    if about.actions is not None:
        tokens = "again", "head", "demonstrated", "uneven", "early", "compact", "slots"
        absent = {} if hasattr(task, "expert") else {"demonstrations": f"the rules of {name} have no expert"}
        return dict.fromkeys(tokens, f"{name} is a control world, which has no tokens") | absent
    host = (
        f"{name} is scored on the host, or played there. Use another config.seam.source, or a task that runs on devices"
    )
    if about.whole:
        return {"slots": f"{name} has one turn"} | ({"segment": host} if about.host else {})
    reasons: dict[str, str] = dict.fromkeys(("again", "head", "demonstrated", "uneven"), f"{name} is a world")
    if about.rows_of_episode > 1:
        reasons["stored"] = f"{name} has several seats, or chapters"
    if about.host:
        several = dict.fromkeys(("segment", "demonstrations"), f"{name} has several seats") if about.seats > 1 else {}
        return {**reasons, **several, "early": host, "compact": name}
    if about.seats > 1 or about.rows == "chapters":
        reasons |= dict.fromkeys(("segment", "slots"), f"{name} has several seats, or chapters")
    return reasons | ({"compact": name} if about.seats > 1 else {})


def make(setup: phases.Setup) -> Producer:
    """Return the producer of a phase."""
    source, about = setup.algorithm.source, traits.traits(setup.task)
    if setup.stored is not None:
        return stored.Stored(setup, setup.stored)
    if about.actions is not None:
        return acting.Acting(setup)
    if source.origin == "demonstrations":
        return demonstrations.Demonstrations(setup)
    if source.again is not None:
        return completions.Twice(completions.Completions(setup))
    if about.whole:
        whole = completions.Completions(setup)
    else:
        whole = turns.Turns(setup) if about.host else episodes.Episodes(setup)
    return segments.Segments(whole, source.segment) if source.segment else whole


def taken(setup: phases.Setup, state: types.TrainState) -> types.Array | int:
    """Return the number of prompts that the next step takes from the shuffle: of rows in flight, the freed ones."""
    return segments.freed(setup, state) if setup.algorithm.source.segment else setup.drawn
