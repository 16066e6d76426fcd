"""How much of online RL do methods on one stored set give? DPO, IPO, KTO, A-LoL, filtered cloning, AWR against GRPO.

    python -m experiments.offline.compare

A base policy is cloned from noisy demonstrations; its judged samples of training prompts are written to two files, as
rows and as pairs of a right and a wrong answer. All arms start from the base; those on files sample nothing.
``--choose`` compares the learning rates of each arm on a seed and on held-out prompts that the study does not use.
"""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments.worlds import seeds
from rljax import types
from rljax.data import tokenizers
from rljax.host import backends
from rljax.run import programs
from rljax.training import steps

ONLINE = "grpo"
ARMS = {  # algorithm, and the stored file that it reads
    ONLINE: ("grpo(kl=0.0)", ""),
    "dpo": ("dpo(beta=0.1)", "pairs"),
    "ipo": ("ipo(beta=0.1)", "pairs"),
    "kto": ("kto(beta=0.1)", "pairs"),
    "a_lol": ("a_lol()", "rows"),
    "filtered_cloning": ("filtered_cloning()", "rows"),
    "awr": ("awr(beta=0.5)", "rows"),
}
RATES = {  # compared by --choose
    ONLINE: (3e-4, 1e-3),
    "dpo": (3e-5, 1e-4, 3e-4),
    **dict.fromkeys(("ipo", "kto", "a_lol", "filtered_cloning", "awr"), (1e-4, 3e-4)),
}
CHOSEN = {name: rates[0] for name, rates in RATES.items()}  # the best of each on seed SEED
SEED = 1000  # of --choose
EVALUATIONS = 4  # of each arm


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: int
    clone: int  # steps on demonstrations
    steps: int  # of each arm
    stored: int  # prompts whose samples are stored
    heldout: int  # prompts of an evaluation
    digits: int = 2
    prompts: int = 16
    samples: int = 8
    layers: int = 2
    width: int = 64

    @property
    def task(self) -> str:
        """The task, whose demonstrations are noisy."""
        return f"arithmetic(operands=2, digits={self.digits}, noise=0.3)"


FULL = Size(seeds=3, clone=300, steps=200, stored=2048, heldout=500)
QUICK = Size(seeds=1, clone=240, steps=2, stored=32, heldout=4, digits=1, prompts=4, layers=1, width=16)


class NoPairsError(ValueError):
    """No prompt of the stored set has both a right and a wrong answer."""


def config(size: Size, rates: Mapping[str, float], folder: pathlib.Path | None = None):
    """Return a config with a phase for the base and, with the folder of the stored set, one for each arm."""
    c = rljax.default_config()
    c.name, c.task, c.mesh.data = "offline", size.task, 1
    heads, hidden = 2, 3 * size.width
    c.model.update({"layers": size.layers, "width": size.width, "heads": heads, "kv_heads": heads, "hidden": hidden})
    c.batch.update({"prompts": size.prompts, "samples": size.samples})
    c.log.update({"report": False, "rollouts": 0, "rollout_rows": 0})
    adam = "adamw(learning_rate={}, weight_decay=0.0)"
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": 8 * size.prompts}}
    c.phase.base = rljax.phase(**clone, optimizer=adam.format(3e-3), warmup=10)
    c.phases = ("base", *(rates if folder else ()))
    for name in c.phases[1:]:
        algorithm, file = ARMS[name]
        phase = rljax.phase(algorithm=algorithm, steps=size.steps, warmup=5, reference="start")
        phase.optimizer = adam.format(rates[name])
        if file:
            parts = "'pairs', heldout=0.0" if file == "pairs" else "parts=('prompt_value',)"
            phase.seam.source = f"stored({str(folder / f'{file}.jsonl')!r}, {parts})"
        if file == "pairs":
            phase.batch.prompts = size.prompts * size.samples // 2  # as many rows
        c.phase[name] = phase
    return c


def build(c) -> tuple[programs.Program, dict[str, steps.Step]]:
    """Return the program and the step of each phase, by name, on one device."""
    program = programs.build(c, devices=jax.devices()[:1])
    return program, dict(zip(c.phases, program.steps, strict=True))


def judged(step: steps.Step, params: types.Tree, index: np.ndarray, samples: int, split: str, seed: int):
    """Return samples of prompts ``index`` ``[n]`` and their verdicts, B = n * samples rows, on the host."""
    setup = step.setup
    prompts = setup.task.prompts(jnp.asarray(index), split)
    keys = jax.random.split(seeds.key(seed), index.size * samples)
    out = step.generate(params, prompts, keys, samples, setup.settings.sampler)
    verdict = setup.verify(jnp.repeat(prompts.index, samples), split, out.token, out.mask)
    return jax.device_get((out, verdict))


def paired(prompts: Sequence[str], texts: Sequence[Sequence[str]], reward: np.ndarray) -> list[dict[str, str]]:
    """Return pairs of a right and a wrong answer to each prompt, in the order of the answers, each of them once.

    Args:
      prompts: n of them.
      texts: n x G answers; "" is in no pair.
      reward: ``[n, G]``, above 0 where the answer is right.

    Raises:
      NoPairsError: there is no pair.
    """
    pairs = []
    for prompt, answers, paid in zip(prompts, texts, reward, strict=True):
        right = [text for text, r in zip(answers, paid, strict=True) if r > 0 and text]
        wrong = [text for text, r in zip(answers, paid, strict=True) if r <= 0 and text]
        both = zip(right, wrong, strict=False)
        pairs += [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for chosen, rejected in both]
    if not pairs:
        raise NoPairsError(
            f"pairs: none of {reward.shape[0]} prompts has a right and a wrong answer among {reward.shape[1]}, and "
            f"{100 * np.mean(reward > 0):.1f} % of all answers are right; the base needs more or fewer steps of cloning"
        )
    return pairs


def write(
    step: steps.Step, tokenizer: tokenizers.Tokenizer, params: types.Tree, size: Size, folder: pathlib.Path, seed: int
) -> tuple[float, int]:
    """Write the stored set, ``rows.jsonl`` and ``pairs.jsonl``; return its share of right rows and its pairs."""
    index = np.random.default_rng(seed).permutation(step.setup.task.size("train"))[: size.stored]
    out, verdict = judged(step, params, index, size.samples, "train", 10_000 + seed)
    prompts = [step.setup.task.text(int(i), "train") for i in index]
    reward = verdict.reward.reshape(-1, size.samples)
    rows, texts = [], []
    for n, (token, used) in enumerate(zip(out.token, out.mask > 0, strict=True)):
        place, sample = divmod(n, size.samples)
        ids = token[used].tolist()
        text = tokenizer.decode(ids)
        # a pair is text, which ends: not so an answer without an end, or with a token that stands for no text
        same = tokenizer.encode(text) == ids[:-1] and tokenizer.unk not in ids
        texts.append(text if same and ids[-1] in tokenizer.stop else "")
        row = {"prompt": prompts[place], "token": ids, "completion": text}
        row |= {"reward": float(reward[place, sample]), "prompt_value": float(reward[place].mean())}
        rows.append(row | {"behaviour_logp": np.minimum(out.behaviour_logp[n][used], 0).tolist()})
    grouped = [texts[n : n + size.samples] for n in range(0, len(texts), size.samples)]
    pairs = paired(prompts, grouped, reward)
    for name, lines in (("rows", rows), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return float((reward > 0).mean()), len(pairs)


def accuracy(step: steps.Step, params: types.Tree, size: Size, choosing: bool = False) -> float:
    """Return pass@1 on held-out prompts at temperature 1, from 4 samples of each; other prompts for ``choosing``."""
    every, count = step.setup.task.size("heldout"), size.heldout
    index = np.arange(count, 2 * count) % every if choosing else np.arange(min(count, every))
    return float((judged(step, params, index, 4, "heldout", 1)[1].reward > 0).mean())


def start(size: Size, program: programs.Program, folder: pathlib.Path, seed: int) -> types.TrainState:
    """Return the base of a seed, and write its stored set."""
    step = program.steps[0]
    base, _ = seeds.train(step, seeds.begin(step, None, seed), seed, size.clone)
    share, pairs = write(step, program.tokenizer, base.params["policy"], size, folder, seed)
    print(f"seed {seed}: {share:.3f} of the stored rows are right, {pairs} pairs", flush=True)
    return base


def run(size: Size, folder: pathlib.Path) -> dict[str, list[seeds.Curve]]:
    """Return held-out pass@1 of each arm and seed against the step; the arms of a seed start from one base."""
    curves: dict[str, list[seeds.Curve]] = {name: [] for name in ARMS}
    program, _ = build(config(size, CHOSEN))

    def measure(state: types.TrainState) -> float:
        return accuracy(program.steps[0], state.params["policy"], size)

    for seed in range(size.seeds):
        base = start(size, program, folder, seed)
        _, arms = build(config(size, CHOSEN, folder))
        for name in ARMS:
            state, every = seeds.begin(arms[name], base, seed), max(1, size.steps // EVALUATIONS)
            _, curve = seeds.train(arms[name], state, seed, size.steps, measure, every)
            curves[name].append(curve)
            print(f"seed {seed}, {name}: {[(n, round(x, 3)) for n, x in curve]}", flush=True)
    return curves


def choose(size: Size, folder: pathlib.Path) -> str:
    """Return the table of the learning rates: pass@1 of each arm at each rate, in percent."""
    program, _ = build(config(size, CHOSEN))
    base = start(size, program, folder, SEED)
    right: dict[str, list[str]] = {name: [] for name in ARMS}
    for column in range(max(map(len, RATES.values()))):
        rates = {name: values[column] for name, values in RATES.items() if column < len(values)}
        _, arms = build(config(size, rates, folder))
        for name, rate in rates.items():
            state, _ = seeds.train(arms[name], seeds.begin(arms[name], base, SEED), SEED, size.steps)
            solved = accuracy(program.steps[0], state.params["policy"], size, choosing=True)
            right[name].append(f"{rate:g}: {100 * solved:.1f}")
            print(f"{name}, {right[name][-1]}", flush=True)
    return "\n".join(
        ["| arm | rate: pass@1, % |", "| --- | --- |", *(f"| {k} | {', '.join(v)} |" for k, v in right.items())]
    )


def table(curves: Mapping[str, Sequence[seeds.Curve]]) -> str:
    """Return pass@1 at the end and its difference from the base and from online GRPO, paired by seed, in percent."""
    first = [curve[0][1] for curve in curves[ONLINE]]
    last = {name: [curve[-1][1] for curve in arm] for name, arm in curves.items()}
    lines = ["| arm | held-out pass@1, % | minus the base | minus online GRPO |", "| --- | --- | --- | --- |"]
    for name, values in {"base": first, **last}.items():
        gaps = (
            "" if name == "base" else seeds.gap(first, values),
            "" if name == ONLINE else seeds.gap(last[ONLINE], values),
        )
        lines.append(f"| {name} | {seeds.percent(values)} | {gaps[0]} | {gaps[1]} |")
    return "\n".join(lines)


def main(size: Size, out: pathlib.Path, choosing: bool = False) -> None:
    """Run the study, print its table and draw its figure, or choose the learning rates."""
    backends.start()
    with tempfile.TemporaryDirectory() as place:
        if choosing:
            print(choose(size, pathlib.Path(place)))
            return
        curves = run(size, pathlib.Path(place))
    print(table(curves))
    seeds.draw(curves, "sums of two digits: held-out pass@1", out / "offline.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__, choose="compare the learning rates of each arm")
    main(QUICK if given.quick else FULL, given.out, given.choose)
