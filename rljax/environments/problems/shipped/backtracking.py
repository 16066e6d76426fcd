"""Search with dead ends: ``ac bd ab ce a>e:`` answered by a search and a path, ``a>c;c>e;ace``.

A search that meets a dead end goes back, ``a>b;b>d;d!b;b!a;a>c;c>e;ace``.
"""

import dataclasses
import functools
import random as random_lib
from typing import Annotated

import jax
import jax.numpy as jnp

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.environments.problems.shipped import shapes
from rljax.language.settings import setting
from rljax.types import Range

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NAMES = len(_LETTERS)
_BACK = 2**10  # of the code of a step
DeadEnds = Annotated[int, Range(1, 10)]
Length = Annotated[int, Range(1, 8)]


@dataclasses.dataclass(frozen=True)
class Backtracking(shapes.Shaped):
    """Find a path between two junctions of a directed graph without cycles; ``ab`` is an edge from ``a`` to ``b``.

    Every path from the start to the goal is a correct answer. A demonstration is a depth-first search, which takes
    edges in the order of the prompt: ``a>b`` goes on, ``b!a`` goes back from a junction from which no edge is left, and
    the path is what was entered and not left. Joins are edges to refuted junctions and short cuts; decoys are junctions
    that cannot be reached, with an edge to others. The splits share no graph of the junctions that can be reached,
    whatever the order of the edges is; which graphs are held out is the same for all settings. A slip is a retreat that
    is missed, so that the path goes through the dead end; noise is the name of another junction: the search continues
    as if the name were that of the right one.

    Every step is judged from where the search stands, in any order of branches. Parts are the share of steps that are
    ``right``, and the number of those that are not: ``unknown``, not a step, or a name that the graph lacks; ``place``,
    not from where the search stands; ``edge``, no such edge; ``repeat``, to a junction that is refuted or on the path;
    ``back``, before all branches are refuted, or to another junction than the one before. A junction is refuted if the
    goal cannot be reached from it and the search has visited and left everything that can be. A search goes where a
    wrong step leads; of junctions that it has not entered it neither leaves one nor goes back to one.
    """

    dead_ends: DeadEnds | tuple[DeadEnds, DeadEnds] = setting(
        (2, 5), "Dead ends that a search meets; (least, most): each number is a domain."
    )
    length: tuple[Length, Length] = setting((3, 5), "(least, most) edges of the path.")
    depth: Annotated[int, Range(1, 4)] = setting(2, "The most edges of a branch that is a dead end.")
    branching: Annotated[int, Range(2, 4)] = setting(3, "The most edges from a junction.")
    joins: Annotated[int, Range(0, 4)] = setting(2, "Edges to refuted junctions, and short cuts.")
    decoys: Annotated[int, Range(0, 8)] = setting(3, "Junctions that cannot be reached.")

    name = "backtracking"
    knob = "dead_ends"
    unit = "dead end"
    parts = ("right", "unknown", "place", "edge", "repeat", "back")
    alphabet = _LETTERS + " >!:"

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        super().__post_init__()
        self.check_order("length", self.length)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step goes on or back; a wrong name is one of all letters."""
        return self._table[0][2].shape[1], _NAMES

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write the edges, those from a junction in the order of the search, the start and the goal."""
        _, goal, edge, code = self._graph(value)
        rank = jnp.argsort(jnp.argsort(self.split(value)["order"], axis=1), axis=1)
        order = jnp.argsort(jnp.sort(edge // 32 * 64 + rank, axis=1) % 64, axis=1)  # edges are sorted by junction
        edge = jnp.take_along_axis(edge, order, axis=1)
        x, y = (jnp.take_along_axis(code, jnp.minimum(at, _NAMES - 1), axis=1) for at in (edge // 32, edge % 32))
        text = jnp.stack([x, y, jnp.full_like(x, ord(" "))], axis=2)
        text = jnp.where((edge < _NAMES * 32)[:, :, None], text, 0).reshape(len(value), -1)
        last = jnp.take_along_axis(code, goal[:, None], axis=1)
        return characters.pack(characters.line(len(value), text, code[:, 0], ">", last, ":"), text.shape[1] + 4)

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write the search and the path."""
        count, goal, _, names = self._graph(value)
        step = shapes.pick(self._table, self.split(value))[2]
        back, x, y, rows = step >= _BACK, step // 32 % 32, step % 32, jnp.arange(len(value))[:, None]
        total = count[:, None] + self.decoys
        other = jnp.where(off > 0, (y + 1 + (off - 1) % (total - 1)) % total, y)
        entered = jnp.where(back | (step == 0), _NAMES, y)  # where there is none, beyond the junctions
        label = jnp.tile(jnp.arange(_NAMES)[None], (len(value), 1)).at[rows, entered].set(other, mode="drop")
        code = jnp.take_along_axis(names, label, axis=1)  # of what is written
        shown, sign = (step > 0) & ~(back & slip), jnp.where(back, ord("!"), ord(">"))
        left = jnp.where(back & shown, x, _NAMES)
        to = jnp.where(
            back & (off > 0), *(jnp.take_along_axis(each, at, axis=1) for each, at in ((names, other), (code, y)))
        )
        x = jnp.take_along_axis(code, x, axis=1)
        text = jnp.stack([x, sign, to, jnp.full_like(x, ord(";"))], axis=2)
        on = (jnp.arange(_NAMES)[None] <= goal[:, None]).at[rows, left].set(False, mode="drop")
        path = characters.pack(jnp.where(on, code, 0), int(self._table[0][0][:, 0].max()))
        return rules.Solution(jnp.where(shown[:, :, None], text, 0).reshape(len(value), -1), path)

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Follow the path: correct if it starts and ends right and has edges that exist."""
        _, goal, edge, code = self._graph(value)
        node = _nodes(code, characters.pack(written, _NAMES + 1))  # longer than every path
        end = node[:, 1:] < 0
        exists = _linked(_adjacency(edge), node[:, :-1], node[:, 1:]) | end
        last = jnp.take_along_axis(node, jnp.sum(node >= 0, axis=1, keepdims=True) - 1, axis=1)[:, 0]
        right = (node[:, 0] == 0) & (last == goal) & end[:, -1] & jnp.all(exists, axis=1)
        return rules.consists(written, _LETTERS), right

    def judge_steps(self, value: jax.Array, written: jax.Array) -> rules.Steps:
        """Follow the search, from step to step."""
        count, goal, edge, code = self._graph(value)
        ends, place = written == ord(";"), rules.places(written)[1]
        x, sign, y = (jnp.pad(written, ((0, 0), (back, 0)))[:, :-back] for back in (3, 2, 1))
        x, y, forward = _nodes(code, x), _nodes(code, y), sign == ord(">")
        known = (place == 4) & (forward | (sign == ord("!"))) & (jnp.minimum(x, y) >= 0)
        known &= jnp.maximum(x, y) < (count + self.decoys)[:, None]
        x, y = (jnp.clip(at, 0, _NAMES - 1) for at in (x, y))
        adjacent = _adjacency(edge)
        reach = adjacent | jnp.eye(_NAMES, dtype=bool)[None]
        for _ in range(5):  # paths of up to 2^5 edges
            reach = jnp.einsum("pij,pjk->pik", reach.astype(jnp.float32), reach.astype(jnp.float32)) > 0
        below = _bits(reach) | jnp.where(reach[jnp.arange(len(goal)), :, goal], 2**_NAMES, 0)
        steps = (ends & known, x, forward, y)
        walk = functools.partial(_walk, below)
        start = jnp.zeros((len(value), _NAMES), jnp.int32).at[:, 0].set(1), jnp.ones_like(goal), jnp.zeros_like(goal)
        (_, _, stands), (elsewhere, repeat, back) = jax.lax.scan(walk, start, tuple(each.T for each in steps))
        absent = forward & ~_linked(adjacent, x, y)
        tests = (~known, elsewhere.T, absent, forward & repeat.T, ~forward & back.T)
        return rules.graded(ends, stands == goal, dict(zip(self.parts[1:], tests, strict=True)))

    @property
    def _table(self) -> shapes.Table:
        """The numbers of the junctions and of the goal; the edges; the steps of the search."""
        why, most = "dead_ends: searches with dead ends", _NAMES - self.decoys
        return shapes.table(_draw, self.range, why, self.length, self.depth, self.branching, self.joins, most)

    @property
    def layout(self) -> dict[str, tuple[int, int]]:
        """The number of values of each kind of integer of a problem, and how many there are."""
        large = 2**16
        return {
            "class": (shapes.CLASSES, 1),
            "domain": (len(self.domain_names), 1),
            "shape": (large, 1),  # among the shapes of its class and domain
            "decoy": (large, self.decoys),
            "name": (large, _NAMES),
            "order": (large, self._table[0][1].shape[1] + self.decoys),
        }

    def _graph(self, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return the junctions that can be reached ``[P]``, the goal ``[P]``, edges ``[P, E]`` and names ``[P, N]``.

        An edge is 32 times its first junction, plus the other one; those that are absent are the largest.
        """
        x = self.split(value)
        ends, edge, _ = shapes.pick(self._table, x)
        (count, goal), edge = ends.T, jnp.where(edge > 0, edge, _NAMES * 32)
        decoy = count[:, None] + jnp.arange(self.decoys)[None]
        edge = jnp.concatenate([edge, decoy * 32 + x["decoy"] % decoy], axis=1)
        order = jnp.argsort(edge // 32, axis=1)
        return count, goal, jnp.take_along_axis(edge, order, axis=1), jnp.argsort(x["name"], axis=1) + ord("a")


def _nodes(code: jax.Array, written: jax.Array) -> jax.Array:
    """Return the junctions that characters name, -1 for others: ``[P, T]``."""
    place = jnp.take_along_axis(jnp.argsort(code, axis=1), jnp.clip(written - ord("a"), 0, _NAMES - 1), axis=1)
    return jnp.where((written >= ord("a")) & (written <= ord("z")), place, -1)


def _adjacency(edge: jax.Array) -> jax.Array:
    """Return which junctions an edge connects, ``[P, N, N]`` bool."""
    none = jnp.zeros((len(edge), _NAMES, _NAMES), bool)
    return none.at[jnp.arange(len(edge))[:, None], edge // 32, edge % 32].set(True, mode="drop")


def _linked(adjacent: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return whether there are edges from x to y, ``[P, T]``."""
    return jnp.take_along_axis(adjacent.reshape(len(x), -1), jnp.maximum(x * _NAMES + y, 0), axis=1)


def _bits(chosen: jax.Array) -> jax.Array:
    """Return the sums ``[...]`` of the powers of two of what is chosen, ``[..., N]``."""
    return jnp.einsum("...n,n->...", chosen.astype(jnp.int32), 2 ** jnp.arange(_NAMES))


def _walk(
    below: jax.Array, state: tuple[jax.Array, ...], step: tuple[jax.Array, ...]
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Take a step of searches.

    Args:
      below: ``[P, N]`` the bits of what can be reached from a junction, itself included, and of N for the goal.
      state: the place of each junction on the path from the start, from 1, 0 if it is not there, ``[P, N]``; the bits
        of those visited ``[P]``; where the search stands ``[P]``.
      step: ``[P]`` each: whether there is one, from where, whether forward, to where.

    Returns:
      The new state; whether the step is from elsewhere, whether it goes where the search has been, and whether it is
      wrong to go back.
    """
    (level, visited, stands), (valid, x, forward, y), rows = state, step, jnp.arange(len(below))
    moves = valid & (level[rows, x] > 0)
    here = jnp.where((level > level[rows, x][:, None]) & moves[:, None], 0, level)
    path = _bits(here > 0)
    on, open_ = here[rows, y], ~visited | path | 2**_NAMES  # a junction is refuted if nothing below it is open
    repeat = (on > 0) | (below[rows, y] & open_ == 0)
    early = below[rows, x] & open_ & ~(1 << x) != 0
    back = early | (on != here[rows, x] - 1) | (on == 0)
    enters = moves & forward & (on == 0)
    level = jnp.where((moves & (on > 0))[:, None] & (here > on[:, None]), 0, here)
    level = level.at[rows, y].set(jnp.where(enters, here[rows, x] + 1, level[rows, y]))
    visited = visited | jnp.where(enters, 1 << y, 0)
    new = jnp.where(moves, jnp.where((on > 0) | forward, y, x), stands)
    return (level, visited, new), (x != stands, repeat, back)


def _draw(
    random: random_lib.Random, number: int, length: tuple[int, int], depth: int, branching: int, joins: int, most: int
) -> tuple[str, shapes.Sections] | None:
    """Draw a graph whose junctions are numbered in the order of a search, those that it does not visit at the end."""
    parent, out, path = [0], [list[int]()], [0]

    def below(count: int) -> int:
        return int(random.random() * count)

    def add(at: int) -> int:
        out[at].append(len(out))
        parent.append(at)
        out.append([])
        return len(out) - 1

    edges = length[0] + below(length[1] - length[0] + 1)
    hung = [below(edges) for _ in range(number)]
    for j in range(edges):
        branch = [path[-1]]
        for _ in range(hung.count(j)):
            free = [k for k, u in enumerate(branch[:-1] or branch) if len(out[u]) < branching - (k == 0)]
            if not free:
                return None
            branch = branch[: free[below(len(free))] + 1]
            for _ in range(1 + below(depth + 1 - len(branch))):
                branch.append(add(branch[-1]))
        path.append(add(path[-1]))
    goal, after = path[-1], {u: j for j, u in enumerate(path)}  # of what is not refuted, the place on the path
    for u in path[:-1]:
        if len(out[u]) < branching and below(2):
            after[add(u)] = after[u]
    if len(out) > most:
        return None
    for _ in range(8 * joins):
        u, v, free = below(len(out)), 1 + below(goal), joins + len(parent) - 1 > sum(map(len, out))
        later = after[v] > after.get(u, edges) if v in after else v < u and v not in _up(parent, u)
        if free and later and u != goal and v not in out[u] and len(out[u]) < branching:
            out[u].append(v)
    steps = []
    for v in range(1, goal + 1):
        u = v - 1
        while u != parent[v]:
            steps.append(_BACK + 32 * u + parent[u])
            u = parent[u]
        steps.append(32 * u + v)

    def text(u: int) -> str:
        return "*" if u == goal else f"({''.join(sorted(map(text, out[u])))})"

    return text(0), ([len(out), goal], [32 * u + v for u, each in enumerate(out) for v in each], steps)


def _up(parent: list[int], u: int) -> list[int]:
    """Return the junctions between the start and ``u``, without the start."""
    return [u, *_up(parent, parent[u])] if u else []


backtracking = constructors.of(Backtracking)
