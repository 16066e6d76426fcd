"""Quest: find a key, then the gold behind a locked door; commands are words, ``north``, ``take``."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split, characters
from rljax.environments.worlds import rules, text
from rljax.environments.worlds.shipped.maze import Maze
from rljax.language import settings
from rljax.language.settings import Share, setting

Array = types.Array
_SEED = 21  # decides the quests; part of the world, not of a run
_HELD = 4  # one of so many rooms of the gold makes a problem a held-out one
_MAZE = Maze(side=3)  # whose cells are the rooms
_ROOMS = ("attic", "cellar", "chapel", "garden", "hall", "stable", "study", "tower", "vault")
_WAYS = ("north", "east", "south", "west")
_LONGEST = 6  # characters of a room


@dataclasses.dataclass(frozen=True)
class Quest:
    """Rules: a turn is ``north``, ``east``, ``south``, ``west`` or ``take``; taking the gold ends the episode.

    Nine rooms lie in a grid, and the ways between them are a random spanning tree. A prompt says where key, gold and
    walker are, and the ways from there: ``key attic;gold tower;hall east south``. With ``plan`` it begins with all
    ways, ``attic east hall;attic south study;``; else they must be found. A reply is the room and its ways. It is
    ``locked`` at the way to the gold without the key, ``taken`` for key and gold, ``none`` where there is no way or
    nothing to take, and ``?`` for another text.

    The share ``subgoal`` of the reward is paid for the key, the rest for the gold. A problem is held out if and only if
    a hash of its ways, start and gold is 0 modulo 4, so that no problem is in both splits. An expert knows the ways and
    takes the shortest one. Parts: ``key``, 1 once it is taken; ``moves``; ``malformed``, unreadable turns.
    """

    plan: bool = setting(False, "Whether the prompt has all ways.")
    subgoal: Share = setting(0.0, "Share of the reward that is paid for the key.")
    spare: Annotated[int, types.Range(0, 64)] = setting(4, "Turns beyond those that the longest shortest way takes.")

    name = "quest"
    alphabet = "abcdefghijklmnopqrstuvwxyz ;?"
    parts = ("key", "moves", "malformed")
    turn_length = 5
    reply_length = _LONGEST + sum(1 + len(way) for way in _WAYS)

    __post_init__ = settings.check

    @property
    def prompt_length(self) -> int:
        """All ways if they are told, key and gold, the room and its ways."""
        ways = (len(_ROOMS) - 1) * (2 * _LONGEST + 8) * self.plan
        return ways + len("key ;gold ;") + 2 * _LONGEST + self.reply_length

    @property
    def max_turns(self) -> int:
        """To the key and from there to the gold, both taken, and the spare ones."""
        return 2 * len(_ROOMS) + self.spare

    def size(self, split: Split) -> int:
        """Return the number of problems of a split; two of them may be the same quest."""
        return 2**20 if split == "train" else 2**14

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return problem ``index``: ways [rooms, 4] bool, names, and where walker, gold and key are."""
        number = jax.random.fold_in(jax.random.key(_SEED), index % self.size(split))
        draws = jax.random.split(jax.random.fold_in(number, split == "heldout"), 5)
        ways, room = _MAZE.ways(draws[0]), jnp.arange(len(_ROOMS))
        start = jax.random.randint(draws[1], (), 0, len(_ROOMS))
        place = jnp.arange(1, ways.size + 1).reshape(ways.shape)
        held = (jnp.sum(jnp.where(ways, place, 0)) + start + room) % _HELD == 0
        gold = rules.draw(draws[2], (held if split == "heldout" else ~held) & (room != start))
        open_ = ways & (self._beside(room) != gold)
        near = (_MAZE.distances({"ways": open_, "goal": start}) < len(_ROOMS)) & (room != gold)
        behind = near & (room != start)
        lies = rules.draw(draws[3], jnp.where(jnp.any(behind), behind, near))
        state = {"ways": ways, "at": start, "gold": gold, "lies": lies, **rules.counters(self)}
        return state | {"name": jax.random.permutation(draws[4], len(_ROOMS)).astype(jnp.int32)}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write all ways if they are told, then where key, gold and walker are."""
        lines = []
        for room in range(len(_ROOMS)) if self.plan else ():
            for way in (1, 2):  # the others are told from the other room
                other = self._beside(jnp.int32(room))[way]
                line = rules.line(self._name(state, room), f" {_WAYS[way]} ", self._name(state, other), ";")
                lines.append(jnp.where(state["ways"][room, way], line, 0))
        things = rules.line("key ", self._name(state, state["lies"]), ";gold ", self._name(state, state["gold"]), ";")
        return rules.line(*lines, things, self._view(state))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Walk, or take what lies in the room."""
        is_word = jnp.all(characters.words((*_WAYS, "take")) == text[None], axis=1)
        readable, takes, way = jnp.any(is_word), is_word[4], jnp.argmax(is_word[:4])
        at, has = state["at"], state["key"] > 0
        free = readable & ~takes & state["ways"][at, way]
        locked = free & (self._beside(at)[way] == state["gold"]) & ~has
        walks = free & ~locked
        key_taken, hit = takes & ~has & (at == state["lies"]), takes & (at == state["gold"])
        after = rules.counted(state, key=key_taken, moves=walks, malformed=~readable)
        after["at"] = jnp.where(walks, self._beside(at)[way], at)
        reply = rules.either(key_taken | hit, rules.line("taken"), rules.line("none"))
        reply = rules.either(locked, rules.line("locked"), rules.either(walks, self._view(after), reply))
        paid = key_taken * self.subgoal + hit * (1.0 - self.subgoal)
        return after, rules.judged(self, after, reply, hit, readable).replace(reward=paid)

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write the next step of the shortest way to the key, then to the gold."""
        at, goal = state["at"], jnp.where(state["key"] > 0, state["gold"], state["lies"])
        distance = _MAZE.distances({"ways": state["ways"], "goal": goal})[self._beside(at)]
        way = jnp.argmin(jnp.where(state["ways"][at], distance, len(_ROOMS)))
        return characters.words((*_WAYS, "take"))[jnp.where(at == goal, 4, way)]

    def _beside(self, room: Array) -> Array:
        """Return the rooms in each direction, ``[..., 4]``; where there is no way, any."""
        return (room[..., None] + jnp.broadcast_to(_MAZE.offsets, (*room.shape, 4))) % len(_ROOMS)

    def _name(self, state: Any, room: Array | int) -> Array:
        return characters.words(_ROOMS)[state["name"][room]]

    def _view(self, state: Any) -> Array:
        """Write a room and its ways, ``[reply_length]``."""
        ways = [jnp.where(state["ways"][state["at"], n], rules.line(f" {way}"), 0) for n, way in enumerate(_WAYS)]
        return rules.line(self._name(state, state["at"]), *ways)


quest = text.of(Quest)
