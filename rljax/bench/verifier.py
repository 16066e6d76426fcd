"""Steps whose rows come slowly: ``python -m rljax bench verifier`` and ``bench ahead``.

``verifier``: the verifier sleeps, so that the number of cores does not matter. The step would take the longer of the
two times below if decoding and judging overlapped completely.

``ahead``: half of the devices sample, and half update. "in turn" has lag 0, "ahead" lag 1; "in parts" updates by
micro-batches as they arrive (``run.overlap``), and "one mesh" is the fused program on all devices.
"""

import contextlib
import itertools
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from rljax import bench
from rljax.bench import parts, shapes, sleepers
from rljax.config import files, schema
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging
from rljax.environments.worlds.host import episodes
from rljax.run import producers, programs
from rljax.run.producers import ahead as ahead_lib
from rljax.run.producers import verified
from rljax.run.records import journals
from rljax.run.reports.pages import tables

_ENDLESS = 1_000_000  # updates of the phase
_PARTS = 4  # micro-batches of "in parts", at least


def verifier(
    config: schema.ConfigDict,
    shape: str,
    new_tokens: int,
    rounds: int,
    cases: Sequence[tuple[int, int]],
    devices: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Measure steps with a verifier that takes ``sleepers.SECONDS``, and with one that takes none, interleaved.

    Args:
      config: the config, whose model is set.
      shape: its name.
      new_tokens: the most tokens of a completion.
      rounds: steps of each case.
      cases: numbers of workers and chunks.
      devices: the devices of the mesh; None: all devices.

    Returns:
      A JSON-able record: for each case the seconds of both, and their ratio to max(device, host / workers); and
      "calls", the record of ``timed_calls``.
    """
    config = files.last_phase(config)
    config.log.rollout_rows = 0
    rows = config.batch.prompts * config.batch.samples
    timed: list[dict[str, Any]] = []
    with _task("awake", new_tokens) as config.task:
        program = programs.build(config, devices=devices)
        step = program.steps[-1]

        def stepper(verifiers: judging.Verifiers, chunks: int) -> Callable[[], None]:
            produce = verified.Verified(program, step, verifiers, journals.Journal(), chunks)
            return parts.Runner(step, program.key, produce).whole

        with judging.Verifiers(sleepers.awake, VerifierConfig(workers=2)) as fast:
            awake = {chunks: stepper(fast, chunks) for _, chunks in cases}
            for call in awake.values():
                call()  # compiles
            for workers, chunks in cases:
                with judging.Verifiers(sleepers.asleep, VerifierConfig(workers=workers)) as slow:
                    calls = {"awake": awake[chunks], "asleep": stepper(slow, chunks)}
                    times = bench.interleaved(calls, rounds)
                device, measured = (statistics.median(times[name]) for name in calls)
                scoring = rows * sleepers.SECONDS / workers
                case = {"workers": workers, "chunks": chunks, "device_s": device, "host_s": scoring}
                timed.append(case | {"step_s": measured, "ratio": measured / max(device, scoring)})
    record = {"rows": rows, "seconds": sleepers.SECONDS, "shape": shape, "new_tokens": new_tokens, "cases": timed}
    return {**record, "calls": timed_calls(rounds=rounds)}


@contextlib.contextmanager
def _task(reward: str, length: int) -> Iterator[str]:
    """Yield the call of a task over rows of a temporary file, with a reward function of ``sleepers``."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps({"question": f"{i:04}?", "answer": "1"}) + "\n" for i in range(1024)))
        named = f"reward='{sleepers.__name__}:{reward}'"
        yield f"jsonl({str(path)!r}, {named}, heldout=0.1, completion_length={length})"


def timed_calls(count: int = 200, workers: int = 2, concurrency: int = 64, rounds: int = 20) -> dict[str, Any]:
    """Time slow calls that workers run at once, and quick ones that they run one after another.

    Args:
      count: calls of each kind.
      workers: worker processes.
      concurrency: slow calls that each runs at once.
      rounds: of the quick calls, of which the median is returned.

    Returns:
      A JSON-able record: the seconds of ``count`` calls by name.
    """
    many, one = VerifierConfig(workers=workers, concurrency=concurrency), VerifierConfig(workers=workers)
    seconds = {}
    for name, reward, limits in (("slow rewards", sleepers.slow, many), ("quick rewards", sleepers.awake, one)):
        with judging.Verifiers(reward, limits) as verifiers:

            def score(verifiers: judging.Verifiers = verifiers) -> None:
                verifiers.submit(["x"] * count, [""] * count).result()

            seconds[name] = statistics.median(bench.seconds(score, 1 if limits is many else rounds))
    for name, world, limits in (
        ("slow turns, blocking", sleepers.Blocking, many),
        ("slow turns, awaited", sleepers.Awaiting, many),
        ("quick turns", sleepers.Quick, one),
    ):
        with episodes.Episodes(world, limits) as game:
            game.begin(dict.fromkeys(range(count), 0))
            turn = itertools.count()

            def play(game: episodes.Episodes = game, turn: Iterator[int] = turn) -> None:
                number = next(turn)
                for episode in range(count):
                    game.submit(episode, number, "x")
                while game.waiting:
                    game.ready(1.0)

            seconds[name] = statistics.median(bench.seconds(play, 1 if limits is many else rounds))
    return {"count": count, "workers": workers, "concurrency": concurrency, "seconds": seconds}


def table(record: dict[str, Any]) -> str:
    """Return the record of ``verifier`` as text."""
    head = f"{record['rows']} answers of {1e3 * record['seconds']:.0f} ms; {record['shape']}, {record['device']}"
    columns = ["workers", "chunks", "device s", "host / workers s", "step s", "step / larger"]
    names = ("device_s", "host_s", "step_s", "ratio")
    rows = [[case["workers"], case["chunks"], *(f"{case[name]:.2f}" for name in names)] for case in record["cases"]]
    made = record["calls"]
    slow = f"{made['concurrency']} slow ones ({sleepers.CALL:g} s) at once"
    below = [f"{made['count']} calls, {made['workers']} workers; of each {slow}, quick ones one after another"]
    below += tables.Table(["calls", "s"], [[name, f"{s:.3f}"] for name, s in made["seconds"].items()]).lines()
    return "\n".join([head, *tables.Table(columns, rows, left=0).lines(), *below])


class _Steps:
    """Steps of a program whose rollouts run ahead; each call returns when all work that it began is done."""

    def __init__(self, program: programs.Program, count: int, verifiers: judging.Verifiers | None = None):
        """Take the number of steps of a call, and the workers of a task that is scored on the host."""
        self._step, self._key, self._count, produce = program.steps[-1], program.key, count, None
        if verifiers is not None:
            produce = producers.make(program.sampler, program.sampler.steps[-1], verifiers)
        self._state = self._step.begin(None, self._key, {})
        self._ahead = ahead_lib.Ahead(program, len(program.phases) - 1, produce, self._state)
        self.rows: list[float] = []  # seconds of waiting for the rows of each step

    def __call__(self) -> None:
        """Run the steps."""
        for _ in range(self._count):
            if self._step.setup.overlapped:
                arrived = self._ahead.arrived(self._state)
                self._state, _ = self._step.overlapped.finish(self._state, arrived, self._key)
                continue
            self._ahead.dispatch(self._state)
            jax.block_until_ready(self._state.step)
            start = time.perf_counter()
            rows = self._ahead(self._state)
            self.rows.append(time.perf_counter() - start)
            self._state, _ = self._step.update(self._state, rows, self._key)
        self._ahead.wait()
        jax.block_until_ready(self._ahead.saved(self._state))


def _fused(program: programs.Program, count: int) -> Callable[[], None]:
    """Return a function that runs steps of one program."""
    step, held = program.steps[-1], {"state": program.steps[-1].begin(None, program.key, {})}
    assert step.fused is not None

    def run() -> None:
        for _ in range(count):
            held["state"], _ = step.fused(held["state"], program.key)
        jax.block_until_ready(held["state"])

    return run


def ahead(
    config: schema.ConfigDict, shape: str, prompt: int, length: int, rounds: int, count: int, workers: int
) -> dict[str, Any]:
    """Time steps in turn, ahead and fused, interleaved; then in turn and ahead with a verifier that sleeps.

    Args:
      config: the config, whose model is set.
      shape: its name.
      prompt: tokens of a prompt.
      length: the most tokens of a completion.
      rounds: of each.
      count: steps of a round.
      workers: of the verifier, which needs ``sleepers.SECONDS`` for each row.

    Returns:
      A JSON-able record: seconds of a step, of waiting for rows in turn, and ratios, by case.
    """
    config = files.last_phase(config)
    config.phase[config.phases[-1]].steps, config.log.rollout_rows, config.verifier.chunks = _ENDLESS, 0, 1
    half = max(jax.device_count() // 2, 1)

    def built(lag: int = 0, rollout: int = half, parts: int = 0) -> schema.ConfigDict:
        edited = config.copy_and_resolve_references()
        edited.run.lag, edited.mesh.rollout, edited.run.overlap = lag, rollout, bool(parts)
        edited.learner.microbatches = parts or edited.learner.microbatches
        return edited

    def compare(calls: dict[str, Callable[[], None]]) -> dict[str, Any]:
        for call in calls.values():
            call()  # compiles
        times = bench.interleaved(calls, rounds)
        waited: Any = calls["in turn"]
        return {
            "step_s": {name: statistics.median(x) / count for name, x in times.items()},
            "rows_s": statistics.median(waited.rows),
            **{name: bench.compared(times[name], times["in turn"]) for name in calls if name != "in turn"},
        }

    def filled(**fields: int) -> programs.Program:
        tokenizer: Any = shapes.Tokens(shapes.SHAPES[shape][1])
        return programs.build(built(**fields), tokenizer, task=shapes.Filler(prompt, length))

    cases = {"in turn": {}, "ahead": {"lag": 1}, "in parts": {"parts": max(_PARTS, config.learner.microbatches)}}
    calls: dict[str, Any] = {name: _Steps(filled(**fields), count) for name, fields in cases.items()}
    device = compare(calls | {"one mesh": _fused(filled(rollout=0), count)})
    limits = VerifierConfig(workers=workers)
    with _task("asleep", length) as config.task, judging.Verifiers(sleepers.asleep, limits) as slow:
        host = compare({n: _Steps(programs.build(built(**f)), count, slow) for n, f in cases.items()})
    scoring = config.batch.prompts * config.batch.samples * sleepers.SECONDS / workers
    cases = {"device": device, "verifier": host}
    return {"shape": shape, "devices": jax.device_count(), "scoring_s": scoring, "cases": cases}


def table_ahead(record: dict[str, Any]) -> str:
    """Return the record of ``ahead`` as text."""
    rows = [
        [case, name, f"{seconds:.3f}", *(f"{x:.2f}" for x in _faster(measured, name))]
        for case, measured in record["cases"].items()
        for name, seconds in measured["step_s"].items()
    ]
    head = f"{record['devices']} devices; {record['shape']}; a verifier of {record['scoring_s']:.2f} s"
    waits = ", ".join(f"{case} {measured['rows_s']:.3f} s" for case, measured in record["cases"].items())
    lines = tables.Table(["case", "steps", "step s", "times as fast", "low", "high"], rows, left=2).lines()
    return "\n".join([head, *lines, f"in turn, a step waits for its rows: {waits}"])


def _faster(case: dict[str, Any], name: str) -> list[float]:
    return [case[name]["ratio"], *case[name]["ratio_quartiles"]] if name in case else []
