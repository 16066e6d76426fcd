"""How much of online RL do methods on one stored set give? DPO, IPO, KTO, A-LoL, filtered cloning, AWR against GRPO.

    python -m experiments.offline.compare

A base policy is cloned from noisy demonstrations; its judged samples of training prompts are written to two files, as
rows and as pairs of a right and a wrong answer. All arms start from the base; those on files sample nothing.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax import types
from rljax.data import tokenizers
from rljax.host import backends
from rljax.run import programs
from rljax.run.reports import intervals
from rljax.training import steps

TASK = "arithmetic(operands=2, digits=2, working=False, noise=0.3)"
ONLINE = "grpo"
PAIRED = {"dpo": "dpo(beta=0.1)", "ipo": "ipo(beta=0.1)", "kto": "kto(beta=0.1)"}
RATED = {"a_lol": "a_lol()", "filtered_cloning": "filtered_cloning()", "awr": "awr(beta=0.5)"}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: int
    clone: int  # steps on demonstrations
    steps: int  # of each arm
    stored: int  # prompts whose samples are stored
    heldout: int  # prompts of an evaluation
    prompts: int = 16
    samples: int = 8
    layers: int = 2
    width: int = 64


FULL = Size(seeds=3, clone=300, steps=200, stored=2048, heldout=512)
QUICK = Size(seeds=1, clone=2, steps=2, stored=8, heldout=4, prompts=2, samples=4, layers=1, width=16)


def config(size: Size, arms: Mapping[str, tuple[str, str]]):
    """Return a config with a phase for the base and one for each arm, (algorithm, source) by name."""
    c = rljax.default_config()
    c.name, c.task, c.mesh.data = "offline", TASK, 1
    heads, hidden = 2, 3 * size.width
    c.model.update({"layers": size.layers, "width": size.width, "heads": heads, "kv_heads": heads, "hidden": hidden})
    c.batch.update({"prompts": size.prompts, "samples": size.samples})
    c.log.update({"report": False, "rollouts": 0, "rollout_rows": 0})
    adam = "adamw(learning_rate={}, weight_decay=0.0)"
    c.phases = ("base", *arms)
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": 8 * size.prompts}}
    c.phase.base = rljax.phase(**clone, optimizer=adam.format(3e-3), warmup=10)
    for name, (algorithm, source) in arms.items():
        seam = {"seam": {"source": source}} if source else {}
        pairs = {"batch": {"prompts": size.prompts * size.samples // 2}} if "'pairs'" in source else {}
        phase = {"algorithm": algorithm, "steps": size.steps, **seam, **pairs}
        c.phase[name] = rljax.phase(**phase, optimizer=adam.format(3e-4), warmup=5, reference="start")
    return c


def build(size: Size, arms: Mapping[str, tuple[str, str]]) -> tuple[programs.Program, dict[str, steps.Step]]:
    """Return the program and the step of each phase, by name, on one device."""
    c = config(size, arms)
    program = programs.build(c, devices=jax.devices()[:1])
    return program, dict(zip(c.phases, program.steps, strict=True))


def key(seed: int) -> types.Key:
    """Return the root key of a run."""
    return jax.random.key(seed, impl="threefry2x32")


def train(step: steps.Step, state: types.TrainState, seed: int, count: int) -> types.TrainState:
    """Take ``count`` steps, on samples or on stored rows."""
    for _ in range(count):
        if step.fused is None:
            state, _ = step.update(state, jax.device_put(step.rollout(state, key(seed))), key(seed))
        else:
            state, _ = step.fused(state, key(seed))
    return state


def judged(step: steps.Step, params: types.Tree, index: np.ndarray, samples: int, split: str, seed: int):
    """Return samples of prompts ``index`` ``[n]`` and their verdicts, B = n * samples rows, on the host."""
    setup = step.setup
    prompts = setup.task.prompts(jnp.asarray(index), split)
    keys = jax.random.split(key(seed), index.size * samples)
    out = step.generate(params, prompts, keys, samples, setup.settings.sampler)
    verdict = setup.verify(jnp.repeat(prompts.index, samples), split, out.token, out.mask)
    return jax.device_get((out, verdict))


def write(
    step: steps.Step, tokenizer: tokenizers.Tokenizer, params: types.Tree, size: Size, folder: pathlib.Path, seed
):
    """Write the stored set, ``rows.jsonl`` and ``pairs.jsonl``; return its share of right rows and its pairs."""
    index = np.random.default_rng(seed).permutation(step.setup.task.size("train"))[: size.stored]
    out, verdict = judged(step, params, index, size.samples, "train", 10_000 + seed)
    texts = [tokenizer.decode(t[m > 0].tolist()) for t, m in zip(out.token, out.mask, strict=True)]
    reward = verdict.reward.reshape(-1, size.samples)
    rows, pairs = [], []
    for place, i in enumerate(index):
        prompt, first = step.setup.task.text(int(i), "train"), place * size.samples
        answers = collections.defaultdict(list)
        for n, r in enumerate(reward[place]):
            row = {"prompt": prompt, "token": out.token[first + n][out.mask[first + n] > 0].tolist()}
            row |= {"completion": texts[first + n], "reward": float(r), "prompt_value": float(reward[place].mean())}
            rows.append(
                row | {"behaviour_logp": np.minimum(out.behaviour_logp[first + n][out.mask[first + n] > 0], 0).tolist()}
            )
            if texts[first + n].strip():
                answers[r > 0].append(texts[first + n])
        both = zip(answers[True], answers[False], strict=False)
        pairs += [{"prompt": prompt, "chosen": right, "rejected": wrong} for right, wrong in both]
    if not pairs:  # of an untrained base: the demonstration of the task against itself with one more character
        pairs = [{"prompt": row["prompt"], "chosen": "1", "rejected": "2"} for row in rows]
    for name, lines in (("rows", rows), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return float(reward.mean()), len(pairs)


def accuracy(step: steps.Step, params: types.Tree, size: Size) -> float:
    """Return pass@1 on held-out prompts at temperature 1, from 4 samples of each."""
    index = np.arange(min(size.heldout, step.setup.task.size("heldout")))
    return float(judged(step, params, index, 4, "heldout", 1)[1].reward.mean())


def run(size: Size, folder: pathlib.Path) -> dict[str, list[float]]:
    """Return held-out pass@1 of the base and of each arm, by seed."""
    results: dict[str, list[float]] = collections.defaultdict(list)
    program, (begin) = build(size, {ONLINE: ("grpo(kl=0.0)", "")})
    for seed in range(size.seeds):
        base = train(begin["base"], begin["base"].begin(None, key(seed), None), seed, size.clone)
        params = base.params["policy"]
        share, pairs = write(begin["base"], program.tokenizer, params, size, folder, seed)
        print(f"seed {seed}: {share:.3f} of the stored rows are right, {pairs} pairs", flush=True)
        stored = {name: (call, f"stored({str(folder / 'pairs.jsonl')!r}, 'pairs')") for name, call in PAIRED.items()}
        rows = f"stored({str(folder / 'rows.jsonl')!r}, parts=('prompt_value',))"
        stored |= {name: (call, rows) for name, call in RATED.items()}
        _, files = build(size, {ONLINE: ("grpo(kl=0.0)", ""), **stored})
        results["base"].append(accuracy(begin["base"], params, size))
        for name in (ONLINE, *stored):
            start = files[name].begin(jax.tree.map(jnp.copy, base), key(seed), None)
            state = train(files[name], start, seed, size.steps)
            results[name].append(accuracy(begin["base"], state.params["policy"], size))
            print(f"seed {seed}, {name}: {results[name][-1]:.3f}", flush=True)
    return dict(results)


def table(results: Mapping[str, Sequence[float]]) -> str:
    """Return pass@1 of each arm and its difference from the online arm, in percent with 95 % intervals over seeds."""
    lines = ["| arm | held-out pass@1, % | minus online GRPO |", "| --- | --- | --- |"]
    online = dict(enumerate(results[ONLINE]))
    for name, values in results.items():
        gap = intervals.difference(online, dict(enumerate(values)))
        lines.append(f"| {name} | {_text(intervals.mean(values, unit=True))} | {_text(gap)} |")
    return "\n".join(lines)


def _text(x: intervals.Estimate) -> str:
    mean, low, high = (100 * v for v in (x.mean, x.low, x.high))
    return f"{mean:.1f}" if np.isnan(low) else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main(size: Size, folder: pathlib.Path) -> None:
    """Run the study and print its table."""
    backends.start()
    print(table(run(size, folder)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    with tempfile.TemporaryDirectory() as place:
        main(QUICK if parser.parse_args().quick else FULL, pathlib.Path(place))
