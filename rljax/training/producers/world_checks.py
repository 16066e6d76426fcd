"""Checks of a world before anything compiles, on shapes and types alone."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import control, worlds
from rljax.environments.worlds.host.task import HostWorld
from rljax.language import errors
from rljax.transforms.frame import shapes

Shape = jax.ShapeDtypeStruct
_FLOAT, _INT, _BOOL = jnp.float32, jnp.int32, jnp.bool_


def check(world: worlds.World, key: Any) -> None:
    """Check what a world returns; an exception in it names the function that raised it.

    Args:
      world: bound to a tokenizer.
      key: the abstract value of a key.

    Raises:
      CodeError: an exception inside the world, or a result of another shape or type.
      ValueError: the sizes of the world do not fit each other.
    """
    _sizes(world)
    scalar = Shape((), _INT)
    with errors.inside(f"task {world.name!r}: begin"):
        state = jax.eval_shape(lambda i, k: world.begin(i, "train", k), scalar, key)
        _arrays("the state", state)
    with errors.inside(f"task {world.name!r}: prompt"):
        prompt = jax.eval_shape(world.prompt, state, scalar)
        length = (world.prompt_length,)
        _same("prompt", prompt, (Shape(length, _INT), Shape(length, _FLOAT)))
    training: Any = getattr(world, "training", None)
    if training is not None:
        with errors.inside(f"task {world.name!r}: training"):
            _same("training", jax.eval_shape(training, state, scalar), (Shape(length, _INT), Shape(length, _FLOAT)))
    turn = (world.turn_length,)
    with errors.inside(f"task {world.name!r}: step"):
        stepped = jax.eval_shape(world.step, state, scalar, Shape(turn, _INT), Shape(turn, _FLOAT), key)
        if not (isinstance(stepped, tuple) and len(stepped) == 2 and isinstance(stepped[1], worlds.Reply)):
            raise ValueError(f"step returns {type(stepped).__name__}: expected (state, Reply)")
        shapes.check_same("the state", state, stepped[0])
        _reply(world, stepped[1])


def check_rules(task: control.ControlTask, key: Any) -> None:
    """Check what the rules of a control world return; as ``check``."""
    rules, scalar, number = task.rules, Shape((), _INT), Shape((), _FLOAT)
    action = Shape((rules.actions.size,), _FLOAT) if isinstance(rules.actions, control.Box) else scalar
    with errors.inside(f"task {task.name!r}: begin"):
        state = jax.eval_shape(lambda i: rules.begin(i, "train"), scalar)
        _arrays("the state", state)
    with errors.inside(f"task {task.name!r}: observe"):
        _same("observe", jax.eval_shape(rules.observe, state), Shape((rules.observed,), _FLOAT))
    legal: Any = getattr(rules, "legal", None)
    if legal is not None and isinstance(rules.actions, control.Discrete):
        with errors.inside(f"task {task.name!r}: legal"):
            _same("legal", jax.eval_shape(legal, state), Shape((rules.actions.count,), _BOOL))
    expert: Any = getattr(rules, "expert", None)
    if expert is not None:
        with errors.inside(f"task {task.name!r}: expert"):
            _same("expert", jax.eval_shape(expert, state), action)
    with errors.inside(f"task {task.name!r}: step"):
        after, moved = jax.eval_shape(rules.step, state, action, key)
        shapes.check_same("the state", state, after)
        _same("Moved.reward", moved.reward, number)
        _same("Moved.done", moved.done, Shape((), _BOOL))
        if {*moved.parts} != {*rules.parts}:
            raise ValueError(f"Moved.parts has {sorted(moved.parts)}: expected {sorted(rules.parts)}, as Rules.parts")
        for name, x in moved.parts.items():
            _same(f"Moved.parts[{name!r}]", x, number)
    with errors.inside(f"task {task.name!r}: solved"):
        _same("solved", jax.eval_shape(rules.solved, state, number), Shape((), _BOOL))


def _sizes(world: worlds.World) -> None:
    """Raise ValueError for sizes that no episode fits."""
    where = f"task {world.name!r}"
    least = {"seats": 1, "max_turns": 1, "turn_length": 1, "reply_length": 1, "prompt_length": 1}
    for name, low in least.items():
        value = getattr(world, name)
        if not isinstance(value, int) or value < low:
            raise ValueError(f"{where}: {name} is {value!r}: expected a whole number of at least {low}")
    if world.rows not in ("conversation", "chapters"):
        raise ValueError(f"{where}: rows is {world.rows!r}: expected 'conversation' or 'chapters'")
    if world.completion_length < world.turn_length:
        raise ValueError(
            f"{where}: completion_length is {world.completion_length}, and a turn has up to {world.turn_length} tokens"
        )
    if world.rows == "chapters" and world.completion_length != world.turn_length:
        raise ValueError(f"{where}: completion_length is {world.completion_length}: expected turn_length for chapters")
    if world.seats > 1 and world.rows == "conversation" and world.prompt_length < 2:
        raise ValueError(f"{where}: prompt_length is 1: with several seats, each prompt needs at least two tokens")


def _reply(world: worlds.World, reply: worlds.Reply) -> None:
    """Check a reply, field by field."""
    reply_shape, seats = (world.seats, world.reply_length), (world.seats,)
    expected = {
        **{"token": Shape(reply_shape, _INT), "mask": Shape(reply_shape, _FLOAT), "reward": Shape(seats, _FLOAT)},
        **{"outcome": Shape(seats, _INT), "valid": Shape((), _FLOAT), "done": Shape((), _BOOL)},
        **{"truncated": Shape((), _BOOL), "next_seat": Shape((), _INT), "domain": Shape((), _INT)},
    }
    for name, shape in expected.items():
        _same(f"Reply.{name}", getattr(reply, name), shape)
    for name, names, shape in (("parts", world.parts, seats), ("extra", world.extra, ())):
        given = getattr(reply, name)
        if {*given} != {*names}:
            raise ValueError(f"Reply.{name} has {sorted(given)}: expected {sorted(names)}, as World.{name}")
        for field, x in given.items():
            _same(f"Reply.{name}[{field!r}]", x, Shape(shape, _FLOAT))


def _same(name: str, given: Any, expected: Any) -> None:
    """Raise ValueError unless a tree has the expected shapes and types."""
    one, two = jax.tree.leaves(given), jax.tree.leaves(expected)
    if len(one) != len(two):
        raise ValueError(f"{name} has {len(one)} arrays: expected {len(two)}")
    for x, shape in zip(one, two, strict=True):
        if x.shape != shape.shape or x.dtype != shape.dtype:
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}: expected {shape.dtype}{[*shape.shape]}")


def _arrays(name: str, tree: Any) -> None:
    """Raise ValueError if a tree has no array."""
    if not jax.tree.leaves(tree):
        raise ValueError(f"{name} is empty: expected at least one array")


def rows(world: worlds.World | HostWorld, blank: types.Rollout) -> types.Rollout:
    """Return the rows of a world from blank ones, by their shapes."""
    number, whole = blank.mask, jnp.zeros(blank.mask.shape, jnp.int32)
    return blank.replace(
        turn=whole,
        token_reward=None if world.max_turns == 1 else number,
        parts=dict.fromkeys(world.parts, blank.reward),
        extra={**blank.extra, **dict.fromkeys(world.extra, number)},
    )
