"""Do rljax and TRL's GRPOTrainer compute the same update, and do they train the same policy?

python -m experiments.replication.study --part identical
python -m experiments.replication.study --part free

Both need ``pip install torch trl``; ``--page`` does not. What a run gave is stored when it ends, so that the same
command resumes.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments.arms import pack
from experiments.replication import page
from rljax import types
from rljax.config import files
from rljax.data import storage
from rljax.models.checkpoints import weights
from rljax.run import programs
from rljax.run.evaluation import evaluate

FOLDER = pathlib.Path(__file__).parent
SAMPLES = 8
EVALUATED = (512, 4)  # held-out prompts, samples of each


@dataclasses.dataclass(frozen=True)
class Setting:
    """What both sides are told, each in its own words."""

    steps: int  # rollouts
    rate: float
    ours: dict[str, Any]  # fields of the config
    theirs: dict[str, Any]  # arguments of GRPOConfig
    epochs: int = 1  # gradient steps of a rollout, each on all of its rows
    prompts: int = 16


KL = {"beta": 0.04, "num_iterations": 2}
IDENTICAL = {
    "TRL's defaults": Setting(
        10, 3e-4, {"algorithm": "grpo(like='trl')", "seam.penalty": "kl('k3', 0.04, correction='proximal')"}, KL, 2, 8
    ),
    "row mean, plain k3": Setting(
        10,
        3e-4,
        {"algorithm": "grpo(epsilon=1e-4)", "learner.clip_norm": 0.1},
        KL | {"loss_type": "grpo", "use_bias_correction_kl": False, "max_grad_norm": 0.1},
        2,
        8,
    ),
}
FREE = Setting(25, 1e-4, {"algorithm": "grpo(like='trl')"}, {})


# --- rljax -----------------------------------------------------------------------------------------


def program(setting: Setting, seed: int) -> programs.Program:
    """Return the program of ``configs/reasoning.py`` with a setting, on one device."""
    c = rljax.get_config("reasoning")
    c.seed, c.mesh.data = seed, 1
    c.batch.update({"prompts": setting.prompts, "samples": SAMPLES})
    c.phase.main.update({"steps": setting.steps, "warmup": 0})
    c.phase.main.optimizer = f"adamw(learning_rate={setting.rate}, weight_decay=0.0)"
    c.learner.epochs = setting.epochs
    c.log.update({"rollout_rows": 0, "diagnostics": ("clip",)})
    for field, value in setting.ours.items():
        files.override(c, field, value)
    return programs.build(c, devices=jax.devices()[:1])


def loaded(run: programs.Program, folder: str) -> types.Tree:
    """Return the parameters of a folder of weights, in float32."""
    return weights.load(folder, run.policy.architecture)


def indices(run: programs.Program) -> list[list[int]]:
    """Return the prompts of each step, which depend on the seed and the step alone."""
    state, drawn = run.begin(), []
    for _ in range(run.updates):
        index = run.steps[0].next_prompts(state, run.key).index
        state, drawn = state.replace(cursor=state.cursor + index.size), [*drawn, np.asarray(index).tolist()]
    return drawn


def flat(params: types.Tree) -> np.ndarray:
    """Return all parameters as one float64 vector."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(params)])


def sampled_and_trained(setting: Setting) -> tuple[list[types.Rollout], list[dict[str, float]], list[np.ndarray]]:
    """Run rljax; return the rollouts, the metrics and the parameters after each."""
    run = program(setting, seed=0)
    step, state = run.steps[0], run.begin()
    rollouts, metrics, vectors = [], [], [flat(state.params["policy"])]
    for _ in range(setting.steps):
        rows = jax.device_get(step.rollout(state, run.key))
        state, m = step.update(state, rows, run.key)
        rollouts.append(rows)
        vectors.append(flat(state.params["policy"]))
        clipped = m["clipped_positive"] + m["clipped_negative"]
        # TRL logs the mean over tokens, of k3 times the ratio where it charges that
        kl = m["loss/kl"] / 0.04 if setting.theirs.get("use_bias_correction_kl", True) else m["kl"]
        kept = {"loss": m["loss"], "kl": kl, "clipped": clipped, "gradient norm": m["gradient_norm"]}
        metrics.append({name: float(x) for name, x in kept.items()})
    return rollouts, metrics, vectors


def free(run: programs.Program) -> tuple[types.Tree, list[float], list[float], list[list[int]]]:
    """Train with rljax alone; return parameters, rewards and seconds of each step, and the prompts."""
    step, state, rewards, seconds, drawn = run.steps[0], run.begin(), [], [], []
    assert step.fused is not None
    for _ in range(run.updates):
        start = time.perf_counter()
        drawn.append(np.asarray(step.next_prompts(state, run.key).index).tolist())
        state, metrics = step.fused(state, run.key)
        rewards.append(float(metrics["reward"]))
        seconds.append(time.perf_counter() - start)
    return state.params["policy"], rewards, seconds, drawn


def judge(run: programs.Program) -> Any:
    """Return the task's own verifier, as a function of indices and lists of tokens."""
    step, width = run.steps[0], run.steps[0].setup.task.completion_length

    def reward(index: Sequence[int], completions: Sequence[Sequence[int]]) -> list[float]:
        token, mask = np.zeros((len(index), width), np.int32), np.zeros((len(index), width), np.float32)
        for row, written in enumerate(completions):
            token[row, : len(written)], mask[row, : len(written)] = written, 1.0
        verdict = step.verify(jnp.asarray(index, jnp.int32), "train", jnp.asarray(token), jnp.asarray(mask))
        return np.asarray(verdict.reward).tolist()

    return reward


def measured(run: programs.Program, params: types.Tree) -> dict[str, Any]:
    """Evaluate parameters on the held-out prompts, with the random numbers of the seed."""
    prompts, samples = EVALUATED
    record = evaluate.evaluate(run, params, name="result", step=run.updates, prompts=prompts, samples=samples)
    return {"correct": pack(record["correct"]), "greedy": record["greedy"][0], "length": record["length"]}


# --- the study -------------------------------------------------------------------------------------


def identical(name: str, workdir: pathlib.Path) -> dict[str, Any]:
    """Give the rollouts of rljax to TRL; return how far apart both are after each."""
    from experiments.replication import peer

    setting = IDENTICAL[name]
    rollouts, ours, vectors = sampled_and_trained(setting)
    run = program(setting, seed=0)
    arms = {"TRL": {}, "other kernels": {"attention": "eager", "seed": 1}}
    each = {arm: peer.replay(setting, rollouts, run, workdir / "replay", **how) for arm, how in arms.items()}
    return {
        "part": "identical",
        "setting": name,
        "rljax": ours,
        "TRL": each["TRL"][0],
        "apart": compared(vectors, each["TRL"][1]),
        "control": compared(each["TRL"][1], each["other kernels"][1]),
    }


def compared(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return differences of parameters after each rollout, where the first vector is the base."""
    rows = []
    for k in range(1, len(ours)):
        total, gap = ours[k] - ours[0], theirs[k] - ours[k]
        last = (theirs[k] - theirs[k - 1]) - (ours[k] - ours[k - 1])
        of_step = float(np.linalg.norm(last) / np.linalg.norm(ours[k] - ours[k - 1]))
        relative = float(np.linalg.norm(gap) / np.linalg.norm(total))
        rows.append({"largest": float(np.abs(gap).max()), "relative": relative, "of the step": of_step})
    return rows


def alone(side: str, seed: int, workdir: pathlib.Path) -> dict[str, Any]:
    """Train one side from the base; return its curve, its time and its evaluation."""
    run = program(FREE, seed)
    if side == "base":
        return {"part": "free", "side": side, "seed": seed} | measured(run, loaded(run, run.config.model.weights))
    if side == "rljax":
        params, rewards, seconds, drawn = free(run)
        assert drawn == indices(run)
    else:
        from experiments.replication import peer

        params, rewards, seconds = peer.free(FREE, run, indices(run), judge(run), workdir / f"trl-{seed}", seed)
    curve = {"reward": [round(x, 5) for x in rewards], "seconds": [round(x, 2) for x in seconds]}
    return {"part": "free", "side": side, "seed": seed} | curve | measured(run, params)


def runs(part: str, seeds: Sequence[int]) -> list[tuple[str, Any]]:
    """Return the names of a part's runs and what each calls, the sides interleaved."""
    if part == "identical":
        return [(f"identical-{n}", (identical, name)) for n, name in enumerate(IDENTICAL)]
    sides = [("base", 0), *((side, seed) for seed in seeds for side in ("rljax", "trl"))]
    return [(f"free-{side}-{seed}", (alone, side, seed)) for side, seed in sides]


def main() -> None:
    """Run what is missing, and write results.json and the page from all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("identical", "free"), default="identical")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/replication"), help="of the runs")
    parser.add_argument("--seeds", type=int, nargs="*", default=page.SEEDS, help="of the free runs")
    parser.add_argument("--page", action="store_true", help="run nothing")
    given = parser.parse_args()
    given.workdir.mkdir(parents=True, exist_ok=True)
    for name, (function, *arguments) in [] if given.page else runs(given.part, given.seeds):
        file = given.workdir / f"{name}.json"
        if not file.exists():
            storage.write(file, json.dumps(function(*arguments, given.workdir)))
            print(f"{name} is finished", flush=True)
    records = [json.loads(file.read_text()) for file in sorted(given.workdir.glob("*-*.json"))]
    if records:
        storage.write(FOLDER / "results.json", "[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n")
    page.write(FOLDER)


if __name__ == "__main__":
    main()
