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
from collections.abc import Callable

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


def played(
    program: programs.Program,
    compiled: steps.Step,
    params: types.Tree,
    drawn: rows_lib.Drawn,
    split: environments.Split,
    key: types.Key,
    samples: int,
    sampler: sampling.SamplerConfig,
    pool_of: conversations.Worlds,
    journal: journals.Journal,
    step: int,
    where: str,
    flying: segments.Flying | None = None,
    snapshot: types.Tree = None,
) -> types.Rollout:
    """Play episodes of a host world.

    Args:
      program: the run.
      compiled: the functions of the phase.
      params: the policy's parameters.
      drawn: the P problems.
      split: of the problems.
      key: the root key of the rollout.
      samples: episodes of each problem.
      sampler: how tokens are drawn.
      pool_of: the workers.
      journal: answers of earlier attempts.
      step: updates before this rollout.
      where: name of the batch in messages.
      flying: rows that go on from earlier steps; None: all begin.
      snapshot: parameters of the snapshot, for seats of ``config.world.players``; None: the policy plays every seat.

    Returns:
      B = P * samples * seats rows; rows of a problem are adjacent. Rows of the snapshot are not trained on.

    Raises:
      VerifierError: the world crashed on every row; its note is the first reason.
      Interrupted: the process received SIGTERM or Ctrl-C.
    """
    setup, seats = compiled.setup, compiled.setup.rows_of_episode
    position, row, repeat = (np.repeat(x, samples) for x in (drawn.position, drawn.index, drawn.repeat))
    if flying is None:
        number, rows_key = jnp.arange(row.size, dtype=jnp.int32) % samples, jax.random.fold_in(key, rows_lib.ROWS)
        keys = sampling.row_keys(rows_key, jnp.int32(step), jnp.asarray(row), number, jnp.asarray(repeat))
        keys = jax.random.key_data(dialogue.seat_keys(keys, seats))
        started, pending, free = np.full(row.size, step), None, None
    else:
        keys, started, pending, free = flying.keys, flying.started, flying.pending, flying.free
    order = ("policy",) if snapshot is None else setup.settings.world.players
    ours = np.array(order)[players_lib.seats_of(len(order), row.size, seats, samples)].reshape(-1) == "policy"
    talks = conversations.Conversations(compiled, program.tokenizer, pool_of, journal)
    seed = str(np.asarray(jax.random.key_data(key)).tolist())
    prompts = talks.begin(np.asarray(drawn.index), split, seed, samples, started, free)
    most = compiled.producer.most if flying is not None and isinstance(compiled.producer, segments.Segments) else 0
    players = [params] if snapshot is None else [params, snapshot]
    out = talks.play(players, np.where(ours, 0, 1), np.asarray(processes.fetch(keys)), sampler, pending, most)
    talks.warn(where)
    position, row = (np.repeat(x, seats) for x in (position, row))
    version = np.full(out.mask.shape, step, np.int32) if flying is None else flying.version
    judged = talks.told(), version, None if flying is None else repeat, None if snapshot is None else ours
    return compiled.turns.end(position, row, prompts, out, *judged)


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
        program, settings, number = self.program, self.step.setup.settings, int(state.step)
        flying = None
        if isinstance(self.step.producer, segments.Segments):
            flying = processes.fetch(self._flying(state, program.key))
        drawn = processes.fetch(self.step.next_prompts(state, program.key)) if flying is None else flying.drawn
        batch = drawn, "train", program.key, settings.batch.samples, settings.sampler
        players = play.players(self.step.setup, state)
        given = self.worlds, self.journal, number, f"step {number + 1}", flying, players.get("snapshot")
        return played(program, self.step, players["policy"], *batch, *given)

    @functools.cached_property
    def _flying(self) -> Callable[[types.TrainState, types.Key], segments.Flying]:
        def flying(state: types.TrainState, key: types.Key) -> segments.Flying:
            now = segments.flying(self.step.setup, state, key)
            return now.replace(keys=jax.random.key_data(now.keys))

        return jax.jit(flying)
