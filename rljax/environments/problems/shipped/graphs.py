"""Shapes of dependency graphs, for ``reasoning``: which quantity is computed from which, no two of them isomorphic.

A shape has ``operations`` computed quantities in the order of a post-order traversal from the one that is asked, which
is the last and needs all others. ``KINDS`` says how a quantity is defined.
"""

import functools

import numpy as np

KINDS = ("given", "+n", "-n", "*n", "a+b", "a-b")
MOST = 2**14  # shapes of a table
CLASSES = 40  # of shapes; some classes are held out
_ROUNDS, _SEED = 8, 20
_ODD = 2 * np.random.default_rng(_SEED).integers(2**62, size=16, dtype=np.uint64) + 1


def givens(operations: int) -> int:
    """Return G, the most given quantities of a shape."""
    return max(2, (operations + 1) // 2)


def binaries(operations: int) -> int:
    """Return how many computed quantities may have two operands."""
    return operations // 2 + 1


@functools.cache
def table(operations: int, depth: tuple[int, int] | None = None) -> np.ndarray:
    """Return shapes ``[S, operations, 3]`` int32, none isomorphic to another, ``S`` at most ``MOST``.

    Args:
      operations: computed quantities.
      depth: the least and the most computed quantities of a chain in which each needs the one before; None: any.

    Returns:
      The kind of each computed quantity and its operands, the second 0 if there is none. Operands below G are given:
      the first of them that the traversal reaches is G - 1, the next one G - 2; above them are computed ones.

    Raises:
      ValueError: some class has no graph of this depth.
    """
    shapes, keys = np.zeros((0, operations, 3), np.int32), np.zeros(0, np.uint64)
    for number in range(_ROUNDS):
        known, (more, deep) = len(keys), _draw(operations, number)
        if depth is not None:
            more = more[(deep >= depth[0]) & (deep <= depth[1])]
        keys, shapes = np.concatenate([keys, _keys(more)]), np.concatenate([shapes, more])
        first = np.sort(np.unique(keys, return_index=True)[1])[:MOST]
        keys, shapes = keys[first], shapes[first]
        if len(keys) == MOST or 0 < len(keys) == known:
            break
    if len(keys) < CLASSES:
        few = f"{len(keys)} graphs of {operations} operations; the splits need {CLASSES}"
        raise ValueError(f"depth: {depth} has only {few}")
    return shapes


@functools.cache
def band(least: int, most: int, depth: tuple[int, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the shapes of several numbers of operations in one table.

    Args:
      least: operations.
      most: operations.
      depth: see ``table``.

    Returns:
      ``[S, most, 3]`` int8, those of ``table`` with 0 before the first quantity, operands below G of ``most``
      operations given, others counted on from there; ``[most - least + 2]``, where each number of operations starts.
    """
    rows = list[np.ndarray]()
    for operations in range(least, most + 1):
        shapes, given = table(operations, depth).copy(), givens(operations)
        operand = shapes[:, :, 1:]
        operand += givens(most) - given + (operand >= given) * (most - operations)
        rows.append(np.pad(shapes, ((0, 0), (most - operations, 0), (0, 0))))
    return np.concatenate(rows).astype(np.int8), np.cumsum([0, *map(len, rows)])


def _draw(operations: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw shapes ``[2 MOST, operations, 3]`` and their depths, with a stack of quantities that nothing needs yet."""
    rows, given, place = 2 * MOST, givens(operations), np.arange(2 * MOST)
    random = np.random.default_rng([_SEED, operations, number])
    chain, bushy = random.random(rows), random.random(rows)  # probability of one operand from the stack, of two
    shapes = np.zeros((rows, operations, 3), np.int32)
    depth, stack = np.zeros((rows, given + operations), np.int32), np.zeros((rows, operations + 2), np.int32)
    height, used, spent = np.zeros((3, rows), np.int32)  # of the stack; given quantities; two operands
    for i in range(operations):
        rest, spare = operations - 1 - i, binaries(operations) - spent
        u, v, w, x, y = random.random((5, rows))
        taken = np.where(u < chain, 1, np.where(v < bushy, 2, 0))
        least = np.where(height - 1 > rest, 2, height > np.minimum(rest, spare))
        taken = np.clip(taken, least, np.minimum(2, height))
        height = height - taken
        two = (taken == 2) | ((w < 0.5) & (spare - 1 >= height))
        spent = spent + two
        operands, other = [stack[place, height], stack[place, height + 1]], np.full(rows, -1)
        for j in range(2):  # an operand that is not from the stack is computed before, or given
            pool = used + (used < given)
            again = (random.random(rows) * pool).astype(np.int32)
            again = np.where(given - 1 - again == other, (again + 1) % pool, again)
            before = given + (random.random(rows) * max(i, 1)).astype(np.int32)
            shared = (random.random(rows) < 0.3) & (i > 0) & (before != other)
            free = (taken <= j) & ((j == 0) | two)
            drawn = np.where(shared, before, given - 1 - again)
            used = used + (free & ~shared & (again == used))
            operands[j] = np.where(free, drawn, operands[j])
            other = operands[0]
        a, b = operands
        swap = two & (x < 0.5)
        a, b = np.where(swap, b, a), np.where(two, np.where(swap, a, b), 0)
        kind = np.where(two, 4 + (y < 0.5), 1 + (y * 3).astype(np.int32))
        shapes[:, i] = np.stack([kind, a, b], axis=1)
        depth[:, given + i] = 1 + np.maximum(depth[place, a], np.where(two, depth[place, b], 0))
        stack[place, height] = given + i
        height = height + 1
    return shapes, depth[:, -1]


def _keys(shapes: np.ndarray) -> np.ndarray:
    """Return a number ``[S]`` of each shape that is equal for isomorphic graphs, in which sums commute.

    Each quantity is hashed with its operands, then with all that need it, twice, and the hashes are added.
    """
    rows, operations, _ = shapes.shape
    given, place = givens(operations), np.arange(rows)
    colour = np.zeros((rows, given + operations), np.uint64)
    for _ in range(2):
        for i in range(operations):
            kind, a, b = shapes[:, i].T
            first, second = colour[place, a], np.where(kind >= 4, colour[place, b], 0)
            both = _mix(first, 1) + _mix(second, np.where(kind == 4, 1, 2))
            colour[:, given + i] = _mix(colour[:, given + i] + _mix(both, 3 + kind), 9)
        for i in reversed(range(operations)):
            kind, a, b = shapes[:, i].T
            above = _mix(colour[:, given + i], 3 + kind)
            np.add.at(colour, (place, a), _mix(above, 10))
            two = kind >= 4
            np.add.at(colour, (place[two], b[two]), _mix(above, np.where(kind == 4, 10, 11))[two])
    return _mix(colour, 12).sum(axis=1, dtype=np.uint64)


def _mix(number: np.ndarray, salt: int | np.ndarray) -> np.ndarray:
    """Hash integers, ``[...]`` uint64."""
    number = (number + _ODD[salt]) * _ODD[15]
    number = (number ^ (number >> np.uint64(29))) * _ODD[14]
    return number ^ (number >> np.uint64(32))
