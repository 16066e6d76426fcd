"""Play a seat of a world against a checkpoint, or watch it play.

    python -m rljax play WORKDIR --task "game('connect_four')" [--seat 0]
    python -m rljax play WORKDIR --watch

Without --task, the world is the run's. You are shown what your seat is told, and write a turn as one line; the
other seats are the policy's. In a world of one seat, you or the policy play alone with the world.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TextIO

import jax
import jax.numpy as jnp
from absl import flags

from rljax import environments, sampling, types
from rljax.data import tokenizers
from rljax.environments import traits, worlds
from rljax.language import dotted, messages, parse
from rljax.run import programs
from rljax.run.evaluation import loading
from rljax.run.games import matches


class Turn(NamedTuple):
    """A turn of a player."""

    written: list[int]  # token ids as the player wrote them
    closed: list[int]  # the same, with end-of-sequence in place of whatever else ended the turn


class Player(Protocol):
    """Who writes the turns of a seat."""

    @property
    def name(self) -> str:
        """The player's name."""
        ...

    def __call__(self, context: Sequence[int], key: types.Key) -> Turn | None:
        """Return a turn after the tokens that the seat has; None: there is no place for one."""
        ...


class Policy:
    """A checkpoint as a player: each turn is sampled after the whole conversation so far."""

    name = "policy"

    def __init__(
        self,
        program: programs.Program,
        params: types.Tree,
        world: worlds.World,
        *,
        phase: int = -1,
        temperature: float | None = None,
    ):
        """Compile nothing yet.

        Args:
          program: the run.
          params: the policy's parameters.
          world: bound to the run's tokenizer.
          phase: index of the phase whose sampler is used.
          temperature: divisor of the logits; None: the run's.
        """
        setup = program.setups[phase]
        self._config = matches.sampler(setup, temperature)
        self._ends = program.ends(tuple(dict.fromkeys((*self._config.stop, *world.turn_end))))
        self._width = matches.width(world)
        self._params, self._decoder = params, setup.decoder
        self._length = world.turn_length
        self._sample = jax.jit(self._traced)

    def __call__(self, context: Sequence[int], key: types.Key) -> Turn | None:
        """Sample a turn; None if the context is longer than a row."""
        if len(context) > self._width:
            return None
        token, mask = tokenizers.padded([context], self._width, self._ends.pad, left=True)
        out, (token, mask) = jax.device_get(self._sample(self._params, token, mask, key[None]))
        count = int(out.mask[0].sum())
        return Turn(out.token[0, :count].tolist(), token[0][mask[0] > 0].tolist())

    def _traced(self, params: types.Tree, token: types.Array, mask: types.Array, keys: types.Key) -> Any:
        prompts = types.Prompts(token=token, mask=mask, index=jnp.zeros(1, jnp.int32))
        out = sampling.generate(
            self._decoder, params, prompts, keys, self._config, self._ends, samples=1, length=self._length
        )
        return out, self._ends.closed(out.token, out.mask)


class Person:
    """A person as a player, who writes turns as lines."""

    name = "you"

    def __init__(self, world: worlds.World, tokenizer: tokenizers.Tokenizer, lines: TextIO, show: Callable[..., None]):
        """Read turns from ``lines``; ``show`` prints."""
        self._world, self._tokenizer, self._lines, self._show = world, tokenizer, lines, show

    def __call__(self, context: Sequence[int], key: types.Key) -> Turn | None:
        """Read a turn; ask again while it does not fit.

        Raises:
          ValueError: the lines have ended.
        """
        while True:
            self._show("your turn: ", end="")
            line = self._lines.readline()
            if not line:
                raise ValueError("standard input has ended before the episode.")
            turn = [*encode(self._tokenizer, line.rstrip("\n")), self._tokenizer.eos]
            if self._tokenizer.unk in turn:
                self._show("the tokenizer does not know some of these characters")
            elif len(turn) > self._world.turn_length:
                self._show(f"this has {len(turn)} tokens with its end; a turn has at most {self._world.turn_length}")
            else:
                return Turn(turn, turn)


def encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, one for each character if the tokenizer has these: worlds of characters read them."""
    ids = [tokenizers.continuation(tokenizer, "\n", c) for c in text]
    if all(len(i) == 1 for i in ids):
        return [i[0] for i in ids]
    return tokenizers.continuation(tokenizer, "\n", text)


def run(
    episode: matches.Episode,
    players: Sequence[Player],
    decode: Callable[[list[int]], str],
    show: Callable[..., None] = print,
    visible: Sequence[int] = (),
) -> None:
    """Play an episode to its end.

    Args:
      episode: at its beginning.
      players: one for each seat.
      decode: from token ids to text.
      show: prints a line.
      visible: the seats of which is shown what they read and write.
    """

    def name(seat: int) -> str:
        return f"seat {seat} ({players[seat].name})"

    chapters = episode.world.rows == "chapters"
    views = {seat: episode.prompt(seat) for seat in visible}
    for seat in () if chapters else visible:
        show(f"{name(seat)} reads: {decode(episode.context(seat))}")
    while not episode.over:
        seat = episode.seat
        if chapters and seat in visible:
            show(f"{name(seat)} reads: {decode(episode.context(seat))}")
        elif players[seat].name == "you" and seat in visible and (view := episode.prompt(seat)) != views[seat]:
            show(f"the prompt would now be: {decode(view)}")  # of a game: the board
        turn = players[seat](episode.context(seat), episode.draw())
        if turn is None:
            show(f"{name(seat)} has no tokens left for a turn; the episode is cut.")
            break
        if seat in visible and players[seat].name != "you":
            show(f"{name(seat)} writes: {decode(turn.written)}")
        observation = episode.step(turn.closed, turn.written)
        for other in visible:
            if observation.tokens[other] and not chapters:
                show(f"{name(other)} is told: {decode(observation.tokens[other])}")
        if not observation.valid:
            show("the world failed: this episode does not count.")
            break
    for seat in range(len(players)):
        outcome = types.Outcome(episode.outcome[seat]).name.lower()
        show(f"{name(seat)}: {outcome}, reward {episode.reward[seat]:g}")


def world(program: programs.Program, task: str, number: int, allow_code: Sequence[str] = ()) -> worlds.World:
    """Return a world, bound to the tokenizer of a run.

    Args:
      program: the run.
      task: a call such as "game('connect_four')"; "": the run's task.
      number: index of the phase whose task it is.
      allow_code: packages and modules that a dotted path may name, besides the package of ``task`` itself.

    Raises:
      ValueError: there is no such task, the tokenizer lacks characters of it, or it has one turn only.
    """
    if task:
        with dotted.only([*allow_code, task.partition("(")[0]]):
            made = parse.one(task, parse.Registry("task", environments.TASKS), "--task")
    else:
        made = program.tasks[number]
    if not worlds.in_turns(made):
        kind = "has one turn" if traits.traits(made).whole else "is answered by worker processes"
        raise ValueError(
            f"--task={messages.shown(task or made.name)}: {kind}; must be a world that runs inside the compiled"
            " program, such as guess()."
        )
    return made.bind(program.tokenizer) if task else made


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("task", "", "World to play, such as \"game('connect_four')\"; default: the run's.")
    flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.")
    flags.DEFINE_list("allow_code", [], loading.ALLOW_CODE)
    flags.DEFINE_integer("seat", 0, "The seat that you play.", lower_bound=0)
    flags.DEFINE_bool("watch", False, "Whether the policy plays every seat, and all that is read is shown.")
    flags.DEFINE_integer("index", 0, "Number of the first problem.", lower_bound=0)
    flags.DEFINE_integer("episodes", 1, "Number of episodes, one for each problem.", lower_bound=1)
    flags.DEFINE_enum("split", "heldout", ["train", "heldout"], "Split of the problems.")
    flags.DEFINE_float("temperature", None, "Divisor of the logits, 0 is greedy; default: the run's.", lower_bound=0.0)
    flags.DEFINE_integer("seed", 0, "Seed of the random draws.")


def main(argv: Sequence[str]) -> None:
    """Load a checkpoint and play episodes."""
    f, workdir = flags.FLAGS, messages.argument(argv, "the work directory of a run")
    program, params, step = loading.load(workdir, step=f.step, allow_code=f.allow_code)
    number = program.number(step - 1)
    played = world(program, f.task, number, f.allow_code)
    if not f.watch and f.seat >= played.seats:
        raise ValueError(f"--seat={f.seat}: must be below {played.seats}, the number of seats of {played.name!r}.")
    show = functools.partial(print, flush=True)
    person = Person(played, program.tokenizer, sys.stdin, show)
    functions = matches.functions(played)
    visible = range(played.seats) if f.watch else (f.seat,)
    print(f"step {step}, {played.name}")
    policy = Policy(program, params, played, phase=number, temperature=f.temperature)
    players = [person if seat == f.seat and not f.watch else policy for seat in range(played.seats)]
    for index in range(f.index, f.index + f.episodes):
        print(f"problem {index}")
        episode = matches.Episode(functions, functions.begin(index, f.split, f.seed), functions.key(index, f.seed))
        run(episode, players, lambda ids: messages.escaped(program.tokenizer.decode(ids)), show, visible)
