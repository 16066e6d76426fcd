"""Rollouts of host worlds: conversations whose turns worker processes answer.

Rows are decoded in slots, by calls of the compiled ``Step.turns.turn``: a call reads the replies that have arrived and
writes the next tokens of all turns in progress; keys and values stay on the devices. A turn that ends goes to the
workers as a text, and the next call begins with all rows that have something to read, so a row that waits for a slow
answer holds up no other. Slot s plays rows s, s + n, ... one after another. As the tokens of a row depend neither on
the call nor on the rows that go with it, the time of an answer changes nothing but speed.

With several seats an episode has adjacent rows, which end together. A row that is not next to write keeps what it is
told, and reads it when its turn begins. Each player has slots of its own, in which its parameters write.

With several processes, each plays the episodes of some rows, and before each call all exchange the answers that have
arrived, so that all make the same calls.

Every answer is journalled as it arrives. A run that was killed within a step decodes the same turns again after it is
resumed, and reads the answers from the journal; episodes that were half played are built again in a worker.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, sampling, types
from rljax.host import processes
from rljax.run import programs
from rljax.run.producers import conversations
from rljax.run.records import journals
from rljax.sampling import dialogue
from rljax.sampling import players as players_lib
from rljax.training import rows as rows_lib
from rljax.training import steps
from rljax.training.producers import play, segments


@dataclasses.dataclass(frozen=True)
class Answered:
    """Episodes of a host world: turns are decoded on devices, and answered by worker processes.

    Attributes:
      program: the run.
      step: the compiled functions of the phase.
      worlds: the workers of the world.
      journal: answers of earlier attempts.
    """

    program: programs.Program
    step: steps.Step
    worlds: conversations.Worlds
    journal: journals.Journal

    @property
    def waited(self) -> float:
        """Seconds for which the run has waited for the workers while the devices were idle."""
        return self.worlds.waited

    def __call__(self, state: types.TrainState) -> types.Rollout:
        """Play the episodes of the next step.

        Raises:
          VerifierError: the world crashed on every row; its note is the first reason.
          Interrupted: the process received SIGTERM or Ctrl-C.
        """
        setup, key, number, flying = self.step.setup, self.program.key, int(state.step), None
        if isinstance(self.step.producer, segments.Segments):
            flying = processes.fetch(self._flying(state, key))
        drawn = processes.fetch(self.step.next_prompts(state, key)) if flying is None else flying.drawn
        batch = drawn, "train", key, setup.settings.batch.samples, setup.settings.sampler
        return self.played(self._players(state, key), *batch, number, f"step {number + 1}", flying)

    def played(
        self,
        params: Mapping[str, types.Tree],
        drawn: rows_lib.Drawn,
        split: environments.Split,
        key: types.Key,
        samples: int,
        sampler: sampling.SamplerConfig,
        number: int,
        where: str,
        flying: segments.Flying | None = None,
    ) -> types.Rollout:
        """Play episodes.

        Args:
          params: of each player by name, as ``play.players`` returns them; the policy alone may play all seats.
          drawn: the P problems.
          split: of the problems.
          key: the root key of the rollout.
          samples: episodes of each problem.
          sampler: how tokens are drawn.
          number: updates before this rollout.
          where: name of the batch in messages.
          flying: rows that go on from earlier steps; None: all begin.

        Returns:
          B = P * samples * seats rows; rows of a problem are adjacent. Rows of players that do not learn have mask 0.

        Raises:
          VerifierError: the world crashed on every row; its note is the first reason.
          Interrupted: the process received SIGTERM or Ctrl-C.
        """
        setup, seats, alone = self.step.setup, self.step.setup.rows_of_episode, len(params) == 1
        position, row, repeat = (np.repeat(x, samples) for x in (drawn.position, drawn.index, drawn.repeat))
        if flying is None:
            sample, rows_key = jnp.arange(row.size, dtype=jnp.int32) % samples, jax.random.fold_in(key, rows_lib.ROWS)
            keys = sampling.row_keys(rows_key, jnp.int32(number), jnp.asarray(row), sample, jnp.asarray(repeat))
            keys = jax.random.key_data(dialogue.seat_keys(keys, seats))
            started, pending, free = np.full(row.size, number), None, None
        else:
            keys, started, pending, free = flying.keys, flying.started, flying.pending, flying.free
        order, swap = ("policy",) if alone else setup.settings.world.players, setup.settings.world.swap
        player = players_lib.seats_of(order, row.size, seats, samples, swap).reshape(-1)
        talks = conversations.Conversations(self.step, self.program.tokenizer, self.worlds, self.journal)
        seed = str(np.asarray(jax.random.key_data(key)).tolist())
        prompts = talks.begin(np.asarray(drawn.index), split, seed, samples, started, free)
        producer = self.step.producer
        most = producer.most if flying is not None and isinstance(producer, segments.Segments) else 0
        players = [params[name] for name in players_lib.distinct(order)]
        out = talks.play(players, player, np.asarray(processes.fetch(keys)), sampler, pending, most)
        talks.warn(where)
        position, row = (np.repeat(x, seats) for x in (position, row))
        version = np.full(out.mask.shape, number, np.int32) if flying is None else flying.version
        judged = talks.judged(), version, None if flying is None else repeat, None if alone else player
        return self.step.turns.end(position, row, prompts, out, *judged)

    @functools.cached_property
    def _players(self) -> Callable[[types.TrainState, types.Key], dict[str, types.Tree]]:
        """``play.players``, compiled where a snapshot is drawn, which selects whole trees."""
        players = functools.partial(play.players, self.step.setup)
        return jax.jit(players) if self.step.setup.settings.world.snapshots > 1 else players

    @functools.cached_property
    def _flying(self) -> Callable[[types.TrainState, types.Key], segments.Flying]:
        def flying(state: types.TrainState, key: types.Key) -> segments.Flying:
            now = segments.flying(self.step.setup, state, key)
            return now.replace(keys=jax.random.key_data(now.keys))

        return jax.jit(flying)
