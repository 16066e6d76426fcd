"""Evaluation: unbiased pass@k and greedy accuracy on held-out prompts.

python -m rljax evaluate WORKDIR [--task "countdown()"] [--prompts 256] [--samples 64] [--k 1,8,64]
python -m rljax evaluate runs/first --samples 64
python -m rljax evaluate runs/games --task "game('othello', opponent='random')" --task "guess()"
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.text
from absl import flags

from rljax import environments, sampling, types
from rljax.environments import traits
from rljax.host import processes
from rljax.language import messages
from rljax.run import producers, programs
from rljax.run.evaluation import episodes as statistics
from rljax.run.evaluation import loading, passk, trials
from rljax.run.games import nashconv
from rljax.run.producers import answered, verified
from rljax.run.records import journals
from rljax.run.reports import evaluations as reported
from rljax.run.reports.pages import terminal
from rljax.training import producers as training_producers
from rljax.training import rows as rows_lib
from rljax.training import steps
from rljax.training.learning import row_metrics

ROWS = 4096  # rows sampled at a time
SAMPLED = {"rescore": "unfiltered"}  # changes of the sampler's settings
GREEDY = {"temperature": 0.0, "rescore": "unfiltered"}
_NONE: Mapping[str, types.Tree] = {}
_KEY = 1_000_003  # stream of the root key: all evaluations use the same random numbers, so that they compare


def evaluate(
    program: programs.Program,
    params: types.Tree,
    *,
    name: str,
    step: int,
    prompts: int,
    samples: int,
    ks: Sequence[int] = (),
    split: environments.Split = "heldout",
    verifiers: Any = None,
    examples: int = 4,
    phase: int = -1,
    others: Mapping[str, types.Tree] = _NONE,
) -> dict[str, Any]:
    """Sample every prompt ``samples`` times at the phase's temperature and once greedily, and score all completions.

    Args:
      program: the run.
      params: the policy's parameters.
      name: name of the evaluation.
      step: number of updates of the parameters.
      prompts: number of prompts, the first of the split; all of them if the split has fewer.
      samples: completions per prompt.
      ks: the k of pass@k; if empty, powers of two up to ``samples``.
      split: the split of the prompts.
      verifiers: the workers of a host task or host world, see ``producers.workers``; None starts them for this
        evaluation.
      examples: number of completions in the record.
      phase: index in ``program.phases`` of the phase whose task and sampler settings are used.
      others: parameters of the other players of a world by name, see ``play.fixed``; none: the policy has all seats.

    Returns:
      A record with ``name``, ``step``, ``prompts`` and ``samples``; ``task``, the call that names the task;
      ``pass_at_k`` {k: [mean, low, high]} with 95 % bootstrap intervals over prompts; ``majority_at_k`` likewise, of a
      task with the part "answer"; ``greedy`` [accuracy, low, high] with a 95 % Wilson interval; ``unjudged``, the share
      of samples whose reward does not say whether they are correct, which count as not correct; ``length``, the mean
      in tokens; ``correct`` and ``greedy_correct``, the number of correct completions of each prompt; and ``examples``,
      a few completions. Of a control world ``returns``
      [mean, low, high, greedy mean], the mean of each prompt, ``total``, the greedy one, ``greedy_total``, and
      ``length`` is in steps. Of a world, a completion is an episode with the outcome and reward of seat 0 and the
      tokens of all seats; ``world`` is the record of ``episodes.statistics``, with "nashconv" in Kuhn poker; examples
      have the rows of their episode.

    Raises:
      ValueError: a k is greater than the number of samples.
    """
    compiled = program.steps[phase]
    task, sampler = compiled.setup.task, compiled.setup.settings.sampler
    size = task.size(split)
    prompts = min(prompts, size)
    ks = list(ks) or passk.powers_of_two(samples)
    if max(ks) > samples:
        raise ValueError(f"k={max(ks)}: must be at most the number of samples, {samples}.")
    index = np.arange(prompts, dtype=np.int32)
    with contextlib.ExitStack() as stack:
        workers = verifiers or stack.enter_context(producers.workers(compiled.setup))
        judge = functools.partial(_judge, program, compiled, params, others, index, split, workers)
        sampled = judge(samples, dataclasses.replace(sampler, **SAMPLED))
        greedy = judge(1, dataclasses.replace(sampler, **GREEDY))
    report = record(compiled, sampled, greedy, name, step, ks, split, examples)
    if "world" in sampled:
        names = row_metrics.domains(task)
        report["world"] = statistics.statistics(sampled["world"], ks, seat=0, domains=names)
        if nashconv.plays(task):
            report["world"]["nashconv"] = nashconv.report(*nashconv.of_policy(compiled.setup, params))
    return report


def record(
    compiled: steps.Step,
    sampled: dict[str, Any],
    greedy: dict[str, Any],
    name: str,
    step: int,
    ks: Sequence[int] = (),
    split: environments.Split = "heldout",
    examples: int = 4,
) -> dict[str, Any]:
    """Return the record of an evaluation, without "world"; see ``evaluate``.

    Args:
      compiled: the step of the phase.
      sampled: from ``judged``, of equally many completions of each prompt.
      greedy: from ``judged``, of one greedy completion of each prompt.
      name: name of the evaluation.
      step: number of updates of the parameters.
      ks: the k of pass@k; if empty, powers of two up to the number of samples.
      split: the split of the prompts.
      examples: number of completions in the record.

    Returns:
      The record.
    """
    prompts = greedy["outcome"].size
    samples = sampled["outcome"].size // prompts
    task, ks = compiled.setup.task, list(ks) or passk.powers_of_two(samples)
    solved = (sampled["outcome"] == types.Outcome.CORRECT).reshape(prompts, samples)
    correct, majority = solved.sum(axis=1), {}
    if "answer" in sampled:
        votes = passk.majority_at_k(sampled["answer"].reshape(prompts, samples).astype(np.int64), solved, ks)
        majority["majority_at_k"] = dict(zip(map(str, ks), passk.means(votes), strict=True))
    right = int((greedy["outcome"] == types.Outcome.CORRECT).sum())
    per_prompt = passk.pass_at_k(correct, samples, ks)
    returns = {}
    if "returns" in sampled:
        totals = {"": sampled["reward"].reshape(prompts, samples).mean(axis=1), "greedy_": greedy["reward"]}
        returns = {f"{key}total": x.astype(float).tolist() for key, x in totals.items()}
        returns["returns"] = [*passk.means(totals[""][:, None])[0], float(totals["greedy_"].mean())]
    return {
        "name": name,
        "task": compiled.setup.settings.task,
        "step": step,
        "prompts": prompts,
        "samples": samples,
        "pass_at_k": dict(zip(map(str, ks), passk.means(per_prompt), strict=True)),
        **majority,
        "greedy": passk.share(right, prompts),
        **returns,
        "unjudged": float((sampled["outcome"] == types.Outcome.UNJUDGED).mean()),
        "length": float(sampled["length"].mean()),
        "correct": correct.tolist(),
        "greedy_correct": (greedy["outcome"] == types.Outcome.CORRECT).astype(int).tolist(),
        "examples": [
            {
                "prompt": task.text(i, split),
                **sampled["text"](i * samples),
                "outcome": types.Outcome(int(sampled["outcome"][i * samples])).name.lower(),
                "reward": float(sampled["reward"][i * samples]),
            }
            for i in range(min(examples, prompts))
        ],
    }


def _judge(
    program: programs.Program,
    compiled: steps.Step,
    params: types.Tree,
    others: Mapping[str, types.Tree],
    index: np.ndarray,
    split: environments.Split,
    verifiers: Any,
    samples: int,
    sampler: sampling.SamplerConfig,
) -> dict[str, Any]:
    """Return outcome, reward and length of all completions, [prompts * samples] each, and how to show one.

    Of a world, a completion is an episode, and "world" has the rows that ``episodes.statistics`` reads.
    """
    task, parts = compiled.setup.task, parts_of(index, samples * compiled.setup.rows_of_episode)
    if environments.is_world(task):
        key, host = jax.random.fold_in(program.key, _KEY), compiled.setup.world is None
        if "compact" in training_producers.refused(task):
            sampler = dataclasses.replace(sampler, compact=0)

        def played(part: np.ndarray) -> types.Rollout:
            if not host:
                return compiled.play(params, jnp.asarray(part), key, split, samples, sampler, others)
            producer = answered.Answered(program, compiled, verifiers, journals.Journal())
            batch = rows_lib.each_once(part), split, key, samples, sampler
            return producer.played({"policy": params, **others}, *batch, 0, "an evaluation")

        rows = trials.collect(compiled.setup, [played(part) for part in parts], len(index) * samples)
        return _episodes(rows, program.tokenizer.decode)
    if traits.traits(task).actions is not None:
        return _acted(program, compiled, params, parts, split, samples, sampler, len(index))
    batches: list[tuple] = []
    for part in parts:
        rows, keys = rows_of(part, samples, program.key)
        prompts = verified.prompts(task, program.mesh, part, split)
        out = compiled.generate(params, prompts, keys, samples, sampler)
        if task.host:
            assert verifiers is not None
            local = verified.local_rows(jnp.asarray(rows), out.token, out.mask, program.mesh)
            pending = verified.judge(task, program.tokenizer, verifiers, local, split, samples)
            verdict = verified.verdict([local], [pending], "an evaluation")
        else:
            verdict = compiled.verify(jnp.asarray(rows), split, out.token, out.mask)
        batches.append(processes.fetch(completions(out, verdict)))
    return judged(program, [np.concatenate(x)[: len(index) * samples] for x in zip(*batches, strict=True)])


def _acted(
    program: programs.Program,
    compiled: steps.Step,
    params: types.Tree,
    parts: Sequence[np.ndarray],
    split: environments.Split,
    samples: int,
    sampler: sampling.SamplerConfig,
    prompts: int,
) -> dict[str, Any]:
    """Return what ``_judge`` returns, of whole episodes of a control world; their length is in steps."""
    batches = []
    for part in parts:
        rows, keys = rows_of(part, samples, program.key)
        ended = compiled.act(params, jnp.asarray(rows), keys, split, sampler.temperature)
        batches.append(processes.fetch((ended.outcome, ended.total, ended.time, ended.parts)))
    whole = jax.tree.map(lambda *x: np.concatenate(x)[: prompts * samples], *batches)
    outcome, total, time, numbers = whole

    def text(row: int) -> dict[str, Any]:
        said = [f"{time[row]} steps", *(f"{name} {x[row]:g}" for name, x in numbers.items())]
        return {"completion": f"  {', '.join(said)}"}

    return {"outcome": outcome, "reward": total, "length": time, "returns": True, "text": text}


def parts_of(index: np.ndarray, samples: int) -> list[np.ndarray]:
    """Return prompts in parts of at most ``ROWS`` rows, all of one size, so that one program is compiled.

    The last part is padded; ``samples`` is the number of rows of a prompt.
    """
    size = max(1, min(len(index), ROWS // samples))
    return [np.resize(index[start : start + size], size) for start in range(0, len(index), size)]


def rows_of(index: np.ndarray, samples: int, key: types.Key) -> tuple[np.ndarray, types.Key]:
    """Return the prompt and the key of each row, ``[P * samples]``; ``key`` is the run's root key."""
    rows = np.repeat(index, samples)
    sample_number = np.tile(np.arange(samples, dtype=np.int32), len(index))
    key = jax.random.fold_in(key, _KEY)
    return rows, sampling.row_keys(key, 0, jnp.asarray(rows), jnp.asarray(sample_number))


def completions(out: sampling.Sample, verdict: types.Verdict) -> tuple[types.Array, ...]:
    """Return outcome, reward, token, mask and length of rows, and of a task with the part "answer" that part."""
    answer = [verdict.parts["answer"]] if "answer" in verdict.parts else []
    return verdict.outcome, verdict.reward, out.token, out.mask, out.length, *answer


def judged(program: programs.Program, rows: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return what ``record`` reads of completions, B rows each.

    Args:
      program: the run.
      rows: what ``completions`` returns of them.
    """
    outcome, reward, token, mask, length, *answer = rows
    named = {"answer": np.where(outcome == types.Outcome.UNPARSEABLE, -1, answer[0])} if answer else {}
    return {
        **named,
        "outcome": outcome,
        "reward": reward,
        "length": mask.sum(axis=1),
        "text": lambda row: {"completion": program.tokenizer.decode(token[row, : length[row]].tolist())},
    }


def _episodes(played: trials.Trials, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """Return what ``_judge`` returns, of the episodes of a world, with the outcome and the reward of seat 0."""

    def text(episode: int) -> dict[str, Any]:
        rows = played.described(episode, decode)
        completion = "".join(said["text"] for said in rows[0]["turns"])
        return {"prompt": rows[0]["prompt"], "completion": completion, "rows": rows}

    reward = np.where(np.asarray(played.rows.agent) == 0, played.reward(), 0.0).reshape(-1, played.each).sum(axis=1)
    counted = {"outcome": played.outcome(), "reward": reward, "length": played.length()}
    return {**counted, "text": text, "world": played.counted()}


def table(evaluations: Sequence[dict[str, Any]], console: rich.console.Console | None = None) -> None:
    """Print pass@k and greedy accuracy of evaluations side by side, then example completions of the last."""
    if not evaluations:
        return
    console = console or terminal.console()
    reported.accuracy(evaluations).show(console)
    reported.show_episodes(evaluations, console)
    if any(e.get("unjudged") for e in evaluations):
        console.print(rich.text.Text(f"unjudged: {verified.UNJUDGED}"))
    for e in evaluations[-1:]:
        console.print(f"sample completions ({e['name']}):")
        for x in e["examples"]:
            for row in x.get("rows", [{"prompt": x["prompt"], "turns": [{"by": "policy", "text": x["completion"]}]}]):
                console.print(reported.line(row), end="" if "rows" not in x else "\n")
            console.print(f"  {x['outcome']}, reward {x['reward']:g}")


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_multi_string("task", [], "Task to evaluate on, such as 'arithmetic(digits=3)'; may be repeated.")
    loading.define_flags()
    flags.DEFINE_integer("prompts", 256, "Number of prompts.", lower_bound=1)
    flags.DEFINE_integer("samples", 64, "Completions per prompt.", lower_bound=1)
    flags.DEFINE_list("k", [], "The k of pass@k; default: powers of two up to --samples.")
    flags.DEFINE_enum("split", "heldout", ["train", "heldout"], "Split of the prompts.")


def main(argv: Sequence[str]) -> None:
    """Evaluate a checkpoint; print a table, and one line of JSON for each task."""
    f = flags.FLAGS
    workdir, records = messages.argument(argv, "the work directory of a run"), []
    for task in f.task or [""]:
        program, params, step = loading.of_flags(workdir, task)
        number = program.number(step - 1)
        with producers.workers(program.setups[number]) as workers:
            record = evaluate(
                program,
                params,
                name=(task if len(f.task) > 1 else "checkpoint") + loading.steered_by(),
                step=step,
                prompts=f.prompts,
                samples=f.samples,
                ks=[int(k) for k in f.k],
                split=f.split,
                verifiers=workers,
                phase=number,
            )
        records.append(record)
    table(records)
    for record in records:
        print(json.dumps({k: v for k, v in record.items() if k not in ("examples", "correct", "greedy_correct")}))
