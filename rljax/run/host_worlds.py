"""Rollouts of host worlds: conversations whose turns worker processes answer.

Conversations are decoded in rounds. A round is one call of the compiled ``Step.turn``: it appends the replies that have
arrived and writes the next turn of their rows. The turns go to the workers as texts, and the next round begins with all
rows that have been answered, so a row that waits for a slow answer holds up no other. As the tokens of a row depend
neither on the round nor on the rows that go with it, the time of an answer changes nothing but speed.

Every answer is journalled as it arrives. A run that was killed within a step decodes the same turns again after it is
resumed, and reads the answers from the journal; episodes that were half played are built again in a worker.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, sampling, types
from rljax.data import tokenizers
from rljax.environments import worlds
from rljax.environments.verifiers import pool
from rljax.environments.worlds.host import episodes, records, worker
from rljax.environments.worlds.host import task as host
from rljax.host import processes
from rljax.run import host_rollouts, metrics, programs
from rljax.training import rows as rows_lib
from rljax.training import steps

_POLL = 0.2  # seconds between looks at a signal to stop
_PATIENCE = 1.0  # the most seconds that answered rows wait for others
_OPENING = -1  # in the journal, the number of what comes before turn 0


class Journal:
    """What worlds said, stored by step, row and turn so that it can be replayed. Without a log, nothing is stored.

    An answer is replayed only to the same texts of the same problem, and for the same judge. Of several records of a
    turn the last one counts.
    """

    def __init__(self, log: metrics.StepLog | None, first: int, judge: str = ""):
        """Read the records of steps after ``first``, which a resumed run repeats; ``judge`` names world and config."""
        self._log, self._judge = log, judge
        self._records = {
            (r["step"], r["row"], r["turn"]): r
            for r in (log.read() if log else ())
            if r["step"] > first and r["judge"] == judge
        }

    def replay(self, step: int, row: int, turn: int, text: str) -> Any:
        """Return what was told after the texts with digest ``text``; None if that is not known."""
        record = self._records.get((step, row, turn))
        return None if record is None or record["text"] != text else record["told"]

    def record(self, step: int, row: int, turn: int, text: str, incoming: records.Begun | records.Told) -> None:
        """Store an answer; it is written and flushed when this returns.

        Args:
          step: from 1.
          row: of the batch.
          turn: from 0; -1 for the opening.
          text: digest of problem and turns so far.
          incoming: the answer.
        """
        if self._log is not None:
            place = {"step": step, "row": row, "turn": turn}
            self._log.append({**place, "text": text, "judge": self._judge, "told": incoming.to_json()})


class Worlds(contextlib.AbstractContextManager):
    """The worker processes of a host world; the rollouts of a run share them."""

    def __init__(self, setup: programs.Setup):
        """Take the world and ``config.verifier``; ``with`` starts the workers.

        Raises:
          ValueError: the run has several processes.
        """
        if processes.several():
            raise ValueError(
                f"config.task: {setup.task.name!r} is a host world, which runs in one process; this run has"
                f" {jax.process_count()}. Use one process, or a world that runs inside the program."
            )
        task: Any = setup.task
        fields = setup.settings.verifier
        self.waited = 0.0  # seconds of waiting for answers while the devices were idle
        self.slots = self.written = 0  # positions that were decoded, and those of them that are tokens of turns
        self.numbers = itertools.count()  # of episodes
        self.episodes = episodes.Episodes(
            task.make,
            workers=fields.workers,
            timeout=fields.timeout,
            memory=fields.memory,
            threshold=fields.threshold,
            interrupted=lambda: bool(processes.received()),
        )

    def __enter__(self) -> "Worlds":
        self.episodes.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.episodes.__exit__(*error)


def workers(setup: programs.Setup) -> contextlib.AbstractContextManager[Any]:
    """Return the worker processes that a phase needs, not yet started: of a host world, of a verifier, or none."""
    return Worlds(setup) if worlds.on_host(setup.task) else host_rollouts.verifiers(setup.task, setup.settings.verifier)


@dataclasses.dataclass
class _Row:
    """The conversation of a row, as the world knows it."""

    number: int  # of the episode
    example: Any
    seeds: worker.Seeds
    digest: str  # of the problem and the turns so far
    begun: records.Begun = dataclasses.field(default_factory=records.Begun)
    turns: list[tuple[str, records.Told]] = dataclasses.field(default_factory=list)
    text: str = ""  # the turn that waits for an answer
    stopped: bool = False  # whether that turn ends with a stop token
    known: bool = False  # whether the workers know the episode
    error: str = ""  # why the row does not count
    outcome: types.Outcome = types.Outcome.WRONG
    done: bool = False  # the world ended the episode


class Conversations:
    """The conversations of a batch in progress. One thread plays them."""

    def __init__(
        self, compiled: steps.Step, tokenizer: tokenizers.Tokenizer, pool_of: Worlds, journal: Journal, step: int
    ):
        """Take what plays the rows.

        Args:
          compiled: the functions of the phase.
          tokenizer: the run's tokenizer.
          pool_of: the workers.
          journal: answers of earlier attempts at this step.
          step: the number under which answers are journalled, from 1.
        """
        task = compiled.setup.task
        assert worlds.on_host(task)
        self._task: host.HostWorld = task
        self._compiled, self._tokenizer, self._worlds, self._journal = compiled, tokenizer, pool_of, journal
        self._step, self._rows = step, list[_Row]()
        self._waiting = 0  # turns without an answer

    def begin(self, index: np.ndarray, split: environments.Split, seed: str, samples: int) -> types.Prompts:
        """Begin the episodes of problems ``index`` ``[P]``, those of a problem adjacent; return a prompt for each row.

        Rows of a problem have the same prompt. A row whose world began otherwise, or not at all, does not count.
        """
        for row, i in enumerate(np.repeat(index, samples).tolist()):
            example = self._task.example(i, split)
            seeds = _number(f"{seed}/{split}/{i}"), _number(f"{seed}/{split}/{i}/{row % samples}")
            digest = _digest(f"{split}/{i}/{seeds}/{example!r}")
            self._rows.append(_Row(next(self._worlds.numbers), example, seeds, digest))
        fresh = {}
        for i, row in enumerate(self._rows):
            if (incoming := self._journal.replay(self._step, i, _OPENING, row.digest)) is not None:
                row.begun = records.Begun.from_json(incoming)
            else:
                fresh[row.number] = i
        of = {number: self._rows[i] for number, i in fresh.items()}
        begun = self._worlds.episodes.begin(
            {number: row.example for number, row in of.items()}, {number: row.seeds for number, row in of.items()}
        )
        for number, i in fresh.items():
            self._rows[i].begun, self._rows[i].known = begun[number], True
            self._journal.record(self._step, i, _OPENING, self._rows[i].digest, begun[number])
        return self._prompts(index, samples)

    def _prompts(self, index: np.ndarray, samples: int) -> types.Prompts:
        """Write the openings as prompts ``[B, L]``."""
        ids = []
        for first in range(0, len(self._rows), samples):
            group = self._rows[first : first + samples]
            opening = next((row.begun for row in group if self._task.opening(row.begun)), None)
            for row in group:
                if not row.begun.valid:
                    self._fail(row, row.begun.error, row.begun.outcome)
                elif opening is None:
                    self._fail(row, f"the opening has more than prompt_length={self._task.prompt_length} tokens")
                elif row.begun.messages != opening.messages:
                    self._fail(row, "another sample of the problem has another opening: reset is not deterministic")
            shown = None if opening is None else self._task.opening(opening)
            ids += [shown or [self._tokenizer.eos]] * samples
        token, mask = tokenizers.padded(ids, self._task.prompt_length, self._tokenizer.pad, left=True)
        record: Any = types.Prompts  # its fields are annotated as jax arrays
        return record(token=token, mask=mask.astype(np.float32), index=np.repeat(index, samples))

    def play(
        self, params: types.Tree, prompts: types.Prompts, keys: types.Key, config: sampling.SamplerConfig
    ) -> sampling.Sample:
        """Play all episodes to their end, in rounds; return what was written and told."""
        rows, length = len(self._rows), self._task.completion_length
        sample = self._compiled.turns[0](rows, config)
        incoming, size = np.zeros((rows, self._task.reply_length), np.int32), np.zeros(rows, np.int32)
        used = np.zeros(rows, np.int32)
        ready = np.array([not row.error for row in self._rows])
        patience = _PATIENCE
        while ready.any() or size.any() or self._waiting:
            answered = []
            if ready.any() or size.any():
                start, before = time.perf_counter(), used + size
                ended = np.array([len(row.turns) for row in self._rows], np.int32)
                sample = self._compiled.turn(params, prompts, keys, sample, incoming, size, ended, ready, config)
                token, used = jax.device_get((sample.token, sample.length))
                patience = min(patience, time.perf_counter() - start)
                written = [(int(i), token[i, before[i] : used[i]].tolist()) for i in np.flatnonzero(ready)]
                answered = [(i, t) for i, ids in written if (t := self._ended(i, ids)) is not None]
            incoming, size, ready = np.zeros_like(incoming), np.zeros_like(size), np.zeros_like(ready)
            for i, answer in itertools.chain(answered, self._answers(bool(answered), patience)):
                reply = self._told(i, answer)
                if reply is not None:
                    size[i] = min(len(reply), length - used[i])
                    incoming[i, : size[i]] = reply[: size[i]]
                    ready[i] = used[i] + size[i] < length
        self._worlds.slots += int(sample.slots)
        self._worlds.written += int(sample.mask.sum())
        self._worlds.episodes.end(row.number for row in self._rows if row.known)
        return sample

    def _ended(self, i: int, ids: list[int]) -> records.Told | None:
        """Hand a turn to the world; return the answer if it is in the journal."""
        row, turn = self._rows[i], len(self._rows[i].turns)
        row.text, row.stopped = self._tokenizer.decode(ids), ids[-1] in self._tokenizer.stop
        row.digest = _digest(row.digest + row.text)
        incoming = self._journal.replay(self._step, i, turn, row.digest)
        if incoming is not None:
            return records.Told.from_json(incoming)
        game = self._worlds.episodes
        if not row.known:
            game.resume(row.number, row.example, row.begun, row.turns, row.seeds)
            row.known = True
        game.submit(row.number, turn, row.text)
        self._waiting += 1
        return None

    def _answers(self, answered: bool, patience: float) -> Iterable[tuple[int, records.Told]]:
        """Yield rows and answers that arrive, at least one if none is ``answered``, and those of ``patience`` seconds.

        Raises:
          pool.Interrupted: the process was asked to stop.
        """
        of = {row.number: i for i, row in enumerate(self._rows)}
        game, start = self._worlds.episodes, time.perf_counter()
        limit = start + patience if answered else None
        while self._waiting and (limit is None or time.perf_counter() < limit):
            if processes.received():
                raise pool.Interrupted("stopped while waiting for the world.")
            wait = _POLL if limit is None else min(_POLL, max(limit - time.perf_counter(), 0.0))
            for (number, turn), incoming in game.ready(wait).items():
                if number in of:  # not of a rollout that was interrupted
                    self._waiting -= 1
                    self._journal.record(self._step, of[number], turn, self._rows[of[number]].digest, incoming)
                    yield of[number], incoming
                    limit = limit or time.perf_counter() + patience
        self._worlds.waited += time.perf_counter() - start

    def _told(self, i: int, incoming: records.Told) -> list[int] | None:
        """Note an answer; return the ids that follow the turn, None if the episode is over."""
        row = self._rows[i]
        row.turns.append((row.text, incoming))
        if not incoming.valid:
            self._fail(row, incoming.error, incoming.outcome)
            return None
        if unknown := set(incoming.parts) - set(self._task.parts):
            known = ", ".join(self._task.parts) or "nothing"
            raise ValueError(f"world {self._task.name!r} reports part {unknown.pop()!r}; its `parts` names {known}")
        row.outcome, row.done = types.Outcome[incoming.outcome.upper()], incoming.done and not incoming.truncated
        if incoming.over or len(row.turns) >= self._task.max_turns:
            return None
        reply = self._task.reply(incoming, row.stopped)
        if reply is None:
            self._fail(row, f"the answer to turn {len(row.turns) - 1} has more than reply_length tokens")
        return reply

    def _fail(self, row: _Row, error: str, outcome: str = "crashed") -> None:
        row.error, row.outcome = error or outcome, types.Outcome[outcome.upper()]

    def told(self) -> dict[str, Any]:
        """Return what the world said of the rows, as NumPy arrays; see ``play.of_host``."""
        paid = np.zeros((len(self._rows), self._task.max_turns), np.float32)
        parts = {name: np.zeros(len(self._rows), np.float32) for name in self._task.parts}
        for i, row in enumerate(self._rows):
            if not row.error and row.turns:
                paid[i, : len(row.turns)] = [incoming.reward for _, incoming in row.turns]
                for name, value in row.turns[-1][1].parts.items():
                    parts[name][i] = value
        stop, cut = int(types.Finish.STOP), int(types.Finish.LENGTH)
        return {
            "paid": paid,
            "parts": parts,
            "outcome": np.array([row.outcome for row in self._rows], np.int32),
            "valid": np.array([not row.error for row in self._rows], np.float32),
            "finish": np.array([stop if row.done and not row.error else cut for row in self._rows], np.int32),
        }

    def warn(self, where: str) -> None:
        """Warn of rows that do not count; VerifierError if the world crashed on all of them."""
        outcome = np.array([row.outcome for row in self._rows])
        crashed = (row.error for row in self._rows if row.outcome == types.Outcome.CRASHED)
        host_rollouts.warn(outcome, crashed, where, "world")


def played(
    program: programs.Program,
    compiled: steps.Step,
    params: types.Tree,
    drawn: rows_lib.Drawn,
    split: environments.Split,
    key: types.Key,
    samples: int,
    sampler: sampling.SamplerConfig,
    pool_of: Worlds,
    journal: Journal,
    step: int,
    where: str,
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

    Returns:
      B = P * samples rows, those of a problem adjacent.

    Raises:
      VerifierError: the world crashed on every row; its note is the first reason.
      Interrupted: the process received SIGTERM or Ctrl-C.
    """
    position, row, repeat = (np.repeat(x, samples) for x in (drawn.position, drawn.index, drawn.repeat))
    number, rows_key = jnp.arange(row.size, dtype=jnp.int32) % samples, jax.random.fold_in(key, rows_lib.ROWS)
    keys = sampling.row_keys(rows_key, jnp.int32(step), jnp.asarray(row), number, jnp.asarray(repeat))
    talks = Conversations(compiled, program.tokenizer, pool_of, journal, step + 1)
    seed = f"{np.asarray(jax.random.key_data(key)).tolist()}/{step}"
    prompts = talks.begin(np.asarray(drawn.index), split, seed, samples)
    out = talks.play(params, prompts, keys, sampler)
    talks.warn(where)
    return compiled.turns[1](position, row, prompts, out, talks.told(), np.int32(step))


def rollout(
    program: programs.Program, step: steps.Step, state: types.TrainState, pool_of: Worlds, journal: Journal
) -> types.Rollout:
    """Play one batch of a host world, or read its demonstrations.

    Args:
      program: the run.
      step: the compiled functions of the phase.
      state: the train state.
      pool_of: the workers of the world.
      journal: answers of earlier attempts at this step.

    Returns:
      The rows, sharded by row.

    Raises:
      VerifierError: the world crashed on every row; its note is the first reason.
      Interrupted: the process received SIGTERM or Ctrl-C.
    """
    drawn = processes.fetch(step.next_prompts(state, program.key))
    number, settings = int(state.step), step.setup.settings
    if step.setup.algorithm.source.origin == "demonstrations":
        return host_rollouts.demonstrated(program, step, number, drawn.position, drawn.index)
    batch = drawn, "train", program.key, settings.batch.samples, settings.sampler
    where = f"step {number + 1}"
    return played(program, step, state.params["policy"], *batch, pool_of, journal, number, where)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])
