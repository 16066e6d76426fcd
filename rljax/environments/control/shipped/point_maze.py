"""Point maze: push a point with momentum through a maze to a goal."""

import dataclasses
import functools
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.control import drawn, rules, task
from rljax.environments.worlds.shipped import maze
from rljax.language import settings
from rljax.language.settings import Share, setting

_PUSH, _DRAG = 0.05, 0.2  # cells a step; the highest speed in each direction is _PUSH / _DRAG, 0.25
_SIDES = np.array([[(0, 0), (1, 0)], [(1, 0), (1, 1)], [(0, 1), (1, 1)], [(0, 0), (0, 1)]])  # of a cell, by way
_MARGIN = 0.01  # cells between a wall and the point that it stops


@dataclasses.dataclass(frozen=True)
class PointMaze(drawn.Drawn):
    """Rules: an action is a force to the east and one to the south; the cell of the goal ends the episode.

    Mazes, starts and goals are as in the world ``maze``: spanning trees of a grid, a function of index and split,
    whose splits share no triple of map, start and goal. The point starts at rest in the middle of a cell. Its velocity,
    in cells a step, becomes v' = 0.8 v + 0.05 a, and it moves along the east, then along the south; a wall stops it and
    takes that speed away.

    Observed are the position in the maze and in its cell, the velocity, the way to the goal as the crow flies, and for
    each cell at most ``view`` cells away whether it has a way to the east and to the south. Reaching the goal is paid
    1: at the end, or with ``reward="shaped"`` in parts, for each cell nearer to it on the path, and what is lost on the
    way back. The domains are lengths of the path, up to 1, 2 and more times ``side`` cells.

    Parts: ``bumps``, steps in which a wall stops the point.
    """

    side: Annotated[int, types.Range(3, 8)] = setting(4, "Rows and columns of the grid.")
    walls: Share = setting(1.0, "Probability of a wall where the spanning tree has no way.")
    view: Annotated[int, types.Range(0, 7)] = setting(1, "Cells around the point whose ways are observed.")
    reward: Literal["sparse", "shaped"] = setting("sparse", "When the 1 for the goal is paid.")
    horizon: settings.Count = setting(200, "The most steps of an episode.")

    name, parts, actions, domains = "point_maze", ("bumps",), rules.Box(2), 3

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The most cells of a path."""
        return f"up to {self.side} cells", f"up to {2 * self.side} cells", "longer"

    def domain(self, index: types.Array, split: Split) -> types.Array:
        """Return which lengths of the path problems ``[n]`` have."""
        first = jax.vmap(lambda one: self.begin(one, split)["first"])(index % self.size(split))
        return jnp.minimum((first - 1) // self.side, self.domains - 1)

    def begin(self, index: types.Array, split: Split) -> Any:
        """Return ways ``[cells, 4]``, the cell of the goal, all distances to it, position and velocity ``[2]``."""
        level = self._maze.begin(index, split, jax.random.key(0))
        distance = self._maze.distances(level)
        start = level["start"]
        return {
            "ways": level["ways"],
            "goal": level["goal"],
            "distance": distance,
            "first": distance[start],
            "place": self._middle(start),
            "velocity": jnp.zeros(2, jnp.float32),
        }

    def observe(self, state: Any) -> types.Array:
        """Return position, position in the cell, velocity, the way to the goal, and the ways around."""
        place, cell = state["place"], jnp.floor(state["place"])
        width = 2 * self.view + 1
        ways = state["ways"][:, 1:3].astype(jnp.float32).reshape(self.side, self.side, 2)
        ways = jnp.pad(ways, ((self.view, self.view), (self.view, self.view), (0, 0)))
        column, row = cell.astype(jnp.int32)
        around = jax.lax.dynamic_slice(ways, (row, column, jnp.int32(0)), (width, width, 2))
        numbers = (
            2 * place / self.side - 1,
            2 * (place - cell) - 1,
            state["velocity"] * (_DRAG / _PUSH),
            (self._middle(state["goal"]) - place) / self.side,
        )
        return jnp.concatenate([*numbers, around.reshape(-1)])

    def step(self, state: Any, action: types.Array, key: types.Key) -> tuple[Any, rules.Moved]:
        """Push, and move up to the walls."""
        velocity = (1 - _DRAG) * state["velocity"] + _PUSH * action
        place, bumped = state["place"], jnp.bool_(False)
        for axis, (back, forth) in enumerate(((3, 1), (0, 2))):
            ways, corner = state["ways"][self._cell(place)], jnp.floor(place[axis])
            low = jnp.where(ways[back], -1.0, corner + _MARGIN)
            high = jnp.where(ways[forth], self.side + 1.0, corner + 1 - _MARGIN)
            target = place[axis] + velocity[axis]
            stopped = (target < low) | (target > high)
            place = place.at[axis].set(jnp.clip(target, low, high))
            velocity = velocity.at[axis].set(jnp.where(stopped, 0.0, velocity[axis]))
            bumped |= stopped
        cell = self._cell(place)
        done = cell == state["goal"]
        nearer = state["distance"][self._cell(state["place"])] - state["distance"][cell]
        reward = done if self.reward == "sparse" else nearer / state["first"]
        moved = rules.Moved(reward * jnp.float32(1.0), done, {"bumps": bumped.astype(jnp.float32)})
        return {**state, "place": place, "velocity": velocity}, moved

    @property
    def relabel(self) -> Any:
        """Return what observation and reward would be with another goal; absent if the reward depends on the maze."""
        if self.reward != "sparse":
            raise AttributeError("relabel")
        return self._relabelled

    def _relabelled(
        self, observation: types.Array, following: types.Array, reached: types.Array
    ) -> tuple[types.Array, rules.Moved]:
        """Return them with the cell in which ``reached`` is as the goal."""
        goal = jnp.floor(self._place(reached))
        done = jnp.all(jnp.floor(self._place(following)) == goal)
        way = (goal + 0.5 - self._place(observation)) / self.side
        return observation.at[6:8].set(way), rules.Moved(done * jnp.float32(1.0), done)

    def trainable(self, index: types.Array, reached: types.Array) -> types.Array:
        """Return whether a training problem with the cell in which ``reached`` is as its goal is one too."""
        level = self._maze.begin(index, "train", jax.random.key(0))
        return self._maze.aimed(level, {"cell": self._cell(self._place(reached))})[1]

    def plan(self, index: int, split: Split, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the walls, the way of the point and the middle of the goal, see ``rules.Rules``."""
        ways, goal = _map(self, jnp.int32(index), split)
        cell, way = np.nonzero(~np.asarray(ways, bool))
        corner = np.stack([cell % self.side, cell // self.side], axis=1)
        walls = corner[:, None] + _SIDES[way]
        return walls / self.side, (observation[:, :2] + 1) / 2, np.asarray(self._middle(goal)) / self.side

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the point is in the cell of the goal."""
        return self._cell(state["place"]) == state["goal"]

    @property
    def _maze(self) -> maze.Maze:
        return maze.Maze(side=self.side, walls=self.walls)

    def _cell(self, place: types.Array) -> types.Array:
        column, row = jnp.floor(place).astype(jnp.int32)
        return row * self.side + column

    def _place(self, observation: types.Array) -> types.Array:
        return (observation[:2] + 1) * self.side / 2

    def _middle(self, cell: types.Array) -> types.Array:
        return jnp.stack([cell % self.side, cell // self.side]) + 0.5


@functools.partial(jax.jit, static_argnums=(0, 2))
def _map(world: PointMaze, index: types.Array, split: Split) -> tuple[types.Array, types.Array]:
    """Return the ways and the goal of a problem, compiled: a report draws many."""
    state = world.begin(index, split)
    return state["ways"], state["goal"]


point_maze = task.of(PointMaze)
