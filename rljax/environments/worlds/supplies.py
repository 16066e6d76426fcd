"""What the rows of a world hold beyond those of a task of one turn, for the algorithms that read it."""

from rljax.environments import Task, is_world, worlds


def supplies(task: Task) -> frozenset[str]:
    """Return what the rows of a task hold beyond the defaults, by the names of ``types.Source.supplies``.

    "token_reward" and "turns" for several turns; "agents" for several seats; "episodes" for several rows an episode:
    chapters, or several seats; "domains" where the task has an attribute ``domains`` above 1; and the names of
    ``World.extra``. A task of one turn supplies "token_reward" if its attribute ``supplies`` says so, and "domains"
    likewise if its verdict writes them.
    """
    names = {*getattr(task, "supplies", ())}
    several = getattr(task, "max_turns", 1) > 1
    if several:
        names |= {"token_reward", "turns"}
    if getattr(task, "seats", 1) > 1:
        names |= {"agents", "episodes"}
    if several and getattr(task, "rows", "") == "chapters":
        names.add("episodes")
    if getattr(task, "domains", 1) > 1:
        names.add("domains")
    return frozenset({*names, *getattr(task, "extra", ())})


def rows_of_episode(task: Task) -> int:
    """Return the rows of one episode: a conversation for each seat, or a chapter for each turn; 1 for other tasks."""
    if not worlds.in_turns(task):
        return 1
    return task.max_turns if task.rows == "chapters" else task.seats


def shared(task: Task) -> bool:
    """Return whether the samples of a prompt face the same problem, so that they can be compared."""
    return not (is_world(task) and getattr(task, "anew", False))
