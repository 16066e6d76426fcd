"""Fields of a config that make it faster on this machine: ``python -m rljax bench tune --config X``.

A coordinate search over ``choices.FIELDS`` in their order. For each field, the value so far and the others are timed
interleaved; the fastest replaces it if its median ratio is below ``RATIO`` and it took less in ``SHARE`` of the rounds.
The number of micro-batches is searched again if a later field of the update has changed. The result is timed beside
the config in rounds of their own.
"""

import contextlib
import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from rljax import bench
from rljax.bench import choices, workers
from rljax.config import schema
from rljax.host import backends

RATIO, SHARE = 0.97, 0.75
ROUNDS = 4  # fewer cannot tell SHARE from chance
_AGAIN = "learner.microbatches"
_PLATFORM = {"cudnn": "gpu", "kernel": "gpu", "splash": "tpu"}

# Times settings (each the fields that it changes) interleaved. Returns for each of them "seconds" and "cpu_s", one for
# each round, "compile_s" and "bytes"; or the reason why it cannot run.
Measure = Callable[[Sequence[workers.Edits], Sequence[choices.Part]], "list[dict[str, Any] | str]"]


def faster(comparison: Mapping[str, Any]) -> bool:
    """Return whether a result of ``bench.compared`` is a difference that noise does not explain."""
    return comparison["ratio"] < RATIO and comparison["rounds_faster"] >= SHARE


def _described(result: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the times of a result beside another's."""
    return {
        "ms": 1e3 * statistics.median(result["seconds"]),
        **bench.compared(base["seconds"], result["seconds"]),
        "cpu_ratio": bench.compared(base["cpu_s"], result["cpu_s"])["ratio"],
        "compile_s": result["compile_s"],
        "gib": result["bytes"] / 2**30,
    }


def _summary(trial: Mapping[str, Any]) -> str:
    return f"{trial['value']} {trial['ratio']:.3f}{' (taken)' if trial['taken'] else ''}"


def search(
    config: schema.ConfigDict,
    values: Mapping[str, Sequence[Any]],
    parts: Sequence[choices.Part],
    measure: Measure,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Search for faster values, one field at a time.

    Args:
      config: the config, whose values are the start.
      values: field -> values to try, in the order of the search.
      parts: the parts of the step.
      measure: times several settings.
      report: called with a line for each field once it is decided.

    Returns:
      "edits", the fields that change; "trials", a record of each value; and "skipped", a record of each value that
      cannot run, with "reason".
    """
    edits: dict[str, Any] = {}
    trials: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []

    def one(field: str) -> None:
        now = edits.get(field, workers.value(config, field))
        tried = [now, *(x for x in values[field] if x != now)]
        touched: list[choices.Part] = [p for p in parts if p in choices.FIELDS[field][0]]
        results = measure([{**edits}, *({**edits, field: x} for x in tried[1:])], touched) if len(tried) > 1 else []
        base = results[0] if results else {}
        if isinstance(base, str):
            raise ValueError(f"bench tune: the config itself does not run: {base}")
        best: dict[str, Any] | None = None
        first = len(trials)
        for x, result in zip(tried, results, strict=False):
            if isinstance(result, str):
                skipped.append({"field": field, "value": x, "reason": result})
                continue
            trial = {"field": field, "value": x, "parts": touched, **_described(result, base), "taken": False}
            trials.append(trial)
            if faster(trial) and (best is None or trial["ratio"] < best["ratio"]):
                best = trial
        if best is not None:
            best["taken"] = True
            edits[field] = best["value"]
        report(" ".join([f"{field}:", *map(_summary, trials[first:])]))

    order = list(values)
    for field in order:
        one(field)
    later = order[order.index(_AGAIN) + 1 :] if _AGAIN in order else []
    if any(field in edits for field in later):
        one(_AGAIN)
    same = {field for field, x in edits.items() if x == workers.value(config, field)}
    return {"edits": {f: x for f, x in edits.items() if f not in same}, "trials": trials, "skipped": skipped}


def candidates(
    config: schema.ConfigDict, length: int, vocabulary: int, fields: Iterable[str], platform: str, cores: int
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """Return the values to try for each field, and records of those that cannot differ from others, with the reason.

    Args:
      config: the config.
      length: maximum tokens per completion.
      vocabulary: number of tokens of the policy.
      fields: names in ``choices.FIELDS``; none: all.
      platform: of the device: "cpu", "gpu" or "tpu".
      cores: number of cores of this process.

    Raises:
      ValueError: an unknown field.
    """
    names = list(fields) or list(choices.FIELDS)
    if unknown := [name for name in names if name not in choices.FIELDS]:
        raise ValueError(f"--fields: unknown field {unknown[0]}; the fields are {', '.join(choices.FIELDS)}")
    whole: dict[str, tuple[float, str]] = {
        "sampler.cache_block": (length, f"completions have at most {length} tokens: the same as 0"),
        "learner.vocabulary": (vocabulary, f"the vocabulary has {vocabulary} tokens: the same as 0"),
    }
    out: dict[str, list[Any]] = {}
    skipped: list[dict[str, Any]] = []
    for name in names:
        limit, same = whole.get(name, (float("inf"), ""))
        all_at_once = bool(same) and workers.value(config, name) >= limit
        out[name] = []
        for x in choices.FIELDS[name][1]:
            reason = ""
            if same and (x >= limit or (x == 0 and all_at_once)):
                reason = same
            elif name == "cpu_devices" and (platform != "cpu" or cores == 1):
                reason = f"no choice on {platform} with {cores} core(s)"
            elif (needed := _PLATFORM.get(str(x), platform)) != platform:
                reason = f"runs on {needed}"
            new = cores if x == "cores" else x
            if not reason:
                out[name].append(new)
            elif new != workers.value(config, name):
                skipped.append({"field": name, "value": new, "reason": reason})
    return out, skipped


@dataclasses.dataclass
class Rounds:
    """Times settings in rounds: has a worker for each number of CPU devices, and what they have compiled."""

    work: workers.Work
    local: workers.Worker
    rounds: int

    def __post_init__(self) -> None:
        self._devices = self.work.config.cpu_devices
        self._workers: dict[int, workers.Worker] = {self._devices: self.local}
        self._compiled: dict[str, workers.Compiled] = {}

    def _worker(self, edits: workers.Edits) -> workers.Worker:
        devices = edits.get("cpu_devices", self._devices)
        if devices not in self._workers:
            self._workers[devices] = workers.Remote(self.work, devices)
        return self._workers[devices]

    def _compile(self, part: choices.Part, edits: workers.Edits) -> workers.Compiled:
        """Compile a part once for all settings that are equal for it."""
        read = {f: x for f, x in sorted(edits.items()) if part in choices.FIELDS[f][0]}
        name = json.dumps([part, read])
        if name not in self._compiled:
            given = {f: x for f, x in read.items() if f != "cpu_devices"}
            self._compiled[name] = self._worker(edits).compile(part, given)
        return self._compiled[name]

    def measure(self, settings: Sequence[workers.Edits], parts: Sequence[choices.Part]) -> list[dict[str, Any] | str]:
        """Time settings interleaved, see ``Measure``."""
        results: list[dict[str, Any] | str] = []
        calls: dict[str, Callable[[], None]] = {}
        for number, edits in enumerate(settings):
            try:
                compiled = [self._compile(part, edits) for part in parts]
                worker = self._worker(edits)
            except ValueError as error:
                results.append(str(error).partition("\n")[0])
                continue
            cpu: list[float] = []
            results.append(
                {"cpu_s": cpu, "compile_s": sum(c.compile_s for c in compiled), "bytes": max(c.bytes for c in compiled)}
            )

            def run(worker: workers.Worker = worker, compiled: Any = compiled, cpu: list[float] = cpu) -> None:
                cpu.append(sum(worker.run(c.number) for c in compiled))

            calls[str(number)] = run
        times = bench.interleaved(calls, self.rounds)
        for number, result in enumerate(results):
            if not isinstance(result, str):
                result["seconds"] = times[str(number)]
        return results

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()


def tune(
    work: workers.Work,
    rounds: int,
    fields: Iterable[str] = (),
    devices: Sequence[Any] | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Search for the fields that make a step faster on this machine.

    Args:
      work: the step.
      rounds: calls of each setting, at least ``ROUNDS``.
      fields: names in ``choices.FIELDS`` to search, in this order; none: all.
      devices: the devices of the mesh; None: all devices.
      report: see ``search``.

    Returns:
      A JSON-able record: "edits" by place in the config, "trials" and "skipped" of ``search``, and "whole", the times
      of all parts with the edits beside those without, from rounds of their own; None if nothing changes.

    Raises:
      ValueError: too few rounds, an unknown field, or a config that cannot run.
    """
    if rounds < ROUNDS:
        raise ValueError(f"--rounds={rounds}: tune needs at least {ROUNDS} to tell a difference from noise.")
    local = workers.Local(work, devices)
    cores = backends.cores()
    length, vocabulary = local.setup.task.completion_length, local.setup.networks["policy"].architecture.vocabulary
    values, left_out = candidates(work.config, length, vocabulary, fields, jax.default_backend(), cores)
    for field in [f for f in values if not {*choices.FIELDS[f][0]} & {*local.parts}]:
        left_out.append({"field": field, "value": None, "reason": "the phase samples no rows"})
        del values[field]
    with contextlib.closing(Rounds(work, local, rounds)) as timed:
        result = search(work.config, values, local.parts, timed.measure, report)
        edits, whole = result["edits"], None
        if edits:
            base, new = timed.measure([{}, edits], local.parts)
            assert not isinstance(base, str) and not isinstance(new, str)  # each part has run
            whole = {**_described(new, base), "base_ms": 1e3 * statistics.median(base["seconds"])}
            whole |= {"base_compile_s": base["compile_s"], "base_gib": base["bytes"] / 2**30, "faster": faster(whole)}
    return {
        "cores": cores,
        "load": os.getloadavg()[0],
        "phase": work.config.phases[-1],
        "lengths": work.lengths,
        "rounds": rounds,
        "edits": {workers.place(work.config, field): x for field, x in edits.items()},
        "redraws": [field for field in edits if field in choices.REDRAWS],
        "whole": whole,
        "trials": result["trials"],
        "skipped": [*left_out, *result["skipped"]],
    }


def words(edits: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return edits as words of a command, and as lines of a config file."""
    flags = [f"--set {field}={x if isinstance(x, str) else json.dumps(x)}" for field, x in edits.items()]
    lines = [f"config.{field} = " + (json.dumps(x) if isinstance(x, str) else repr(x)) for field, x in edits.items()]
    return " ".join(flags), lines


def _row(trial: Mapping[str, Any]) -> str:
    low, high = trial["ratio_quartiles"]
    return (
        f"{trial['ms']:9.1f} {trial['ratio']:6.3f} {low:6.3f} to {high:5.3f} {100 * trial['rounds_faster']:5.0f} % "
        f"{trial['cpu_ratio']:6.3f} {trial['compile_s']:9.1f} {trial['gib']:7.2f}"
    )


def table(record: dict[str, Any]) -> str:
    """Return the record of ``tune`` as text."""
    lines = [
        f"phase {record['phase']!r}, {record['lengths']} lengths, {record['rounds']} rounds; {record['cores']} cores, "
        f"{record['device']}, load {record['load']:.0f}",
        f"{'field = value':32s} {'ms':>9s} {'ratio':>6s} {'quartiles':>15s} {'faster':>7s} {'of CPU':>6s} "
        f"{'compile s':>9s} {'GiB':>7s}",
    ]
    for trial in record["trials"]:
        mark = "  taken" if trial["taken"] else ""
        lines.append(f"{trial['field'] + ' = ' + str(trial['value']):32s} {_row(trial)}{mark}")
    lines += [f"skipped: {s['field']} = {s['value']}: {s['reason']}" for s in record["skipped"]]
    whole = record["whole"]
    if whole is None:
        return "\n".join([*lines, "No other value is faster by more than the noise: keep the config."])
    lines.append(f"{'config':32s} {whole['base_ms']:9.1f} {whole['base_compile_s']:48.1f} {whole['base_gib']:7.2f}")
    lines.append(f"{'with all that was taken':32s} {_row(whole)}")
    if not whole["faster"]:
        lines.append("The last comparison is within the noise: repeat with more --rounds before using these fields.")
    flags, assignments = words(record["edits"])
    lines += ["", flags, "", *assignments]
    if record["redraws"]:
        changed = ", ".join(record["redraws"])
        lines.append(f"{changed}: other random draws; tokens differ, their distribution does not. All other fields")
        lines.append("give the same tokens, and gradients equal within rounding.")
    return "\n".join(lines)
