"""Several trained policies and verifiers that write, on faulty sums: what do they add to one policy?

python -m experiments.agents.agents [--only cory rlccf tango]
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments import arms
from experiments.worlds import seeds
from rljax import types
from rljax.run.evaluation import intervals

SUMS = "arithmetic(operands=2, digits=2, slip=0.5, noise=0.2)"
FULL = seeds.Size(seeds=5, clone=450, steps=40, prompts=512, layers=1)
EVALUATIONS = 4  # of each run
PAIR = ("policy", "second")
PRAISED = "+ mix_part('praise', linear(0.5, 1.0, 40))"


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train the policy.

    Attributes:
      task: what it is trained on.
      algorithm: the recipe.
      samples: episodes of a prompt.
      players: who has the seats of the task.
      trained: players that learn beside the policy.
      clone: number of the clone that other players than the policy start from; the policy starts from clone 0.
      reward: a change of the reward.
      swap: whether players change seats from sample to sample.
    """

    task: str = SUMS
    algorithm: str = "dr_mas()"
    samples: int = 16
    players: tuple[str, ...] = ("policy",)
    trained: tuple[str, ...] = ()
    clone: int = 0
    reward: str = ""
    swap: bool = False


@dataclasses.dataclass(frozen=True)
class Contrast:
    """Arms, and what is claimed of them before the runs; the first claim is the primary one.

    A claim is on "pass@1", the mean of all evaluations during a run, "end", the last one, or "verdicts".
    """

    clone: str  # the task whose demonstrations are cloned
    arms: Mapping[str, Arm]
    claims: Sequence[arms.Claim]


ALONE = Arm(algorithm="grpo(kl=0.0)")  # what dr_mas is for one agent
PANEL, VOTES = f"panel({SUMS}, shared=True)", f"panel({SUMS}, shown=False)"
EXAMINE = f"examine({SUMS})"
JUDGED = Arm(EXAMINE, samples=8, players=PAIR, trained=("second",))
CONTRASTS = {
    "cory": Contrast(
        PANEL,
        {
            "alone": ALONE,
            "one policy, both seats": Arm(PANEL, samples=8),
            "pair": Arm(PANEL, samples=8, players=PAIR, trained=("second",), swap=True),
        },
        (
            arms.Claim("The pair has a higher pass@1 than one alone", "pair", "alone", "pass@1"),
            arms.Claim("It has at the end", "pair", "alone", "end"),
            arms.Claim("The pair is above one policy in both seats", "pair", "one policy, both seats", "pass@1"),
        ),
    ),
    "rlccf": Contrast(
        SUMS,
        {
            "one, 16 votes": Arm(VOTES, "rlccf(models=1)", samples=8),
            "equal pair": Arm(VOTES, "rlccf(models=2)", samples=8, players=PAIR, trained=("second",)),
            "pair": Arm(VOTES, "rlccf(models=2)", samples=8, players=PAIR, trained=("second",), clone=1),
        },
        (
            arms.Claim("A pair of clones ends with a higher pass@1 than one", "pair", "one, 16 votes", "end"),
            arms.Claim("A pair from one clone is below a pair of clones", "equal pair", "pair", "end", below=True),
            arms.Claim("Votes of one raise pass@1", "one, 16 votes", "clone", "end"),
            arms.Claim("Votes of a pair raise pass@1", "pair", "clone", "end"),
        ),
    ),
    "tango": Contrast(
        EXAMINE,
        {
            "unpraised": JUDGED,
            "praised": dataclasses.replace(JUDGED, reward=PRAISED),
            "praised by the clone": dataclasses.replace(JUDGED, reward=PRAISED, trained=()),
        },
        (
            arms.Claim("Praise by a trained verifier raises pass@1", "praised", "unpraised", "pass@1"),
            arms.Claim("It does more than the clone's", "praised", "praised by the clone", "pass@1"),
            arms.Claim("Training beside the policy makes verdicts truer", "unpraised", "clone", "verdicts"),
            arms.Claim("So it does with praise", "praised", "clone", "verdicts"),
        ),
    ),
}


def config(contrast: Contrast, size: seeds.Size) -> Any:
    """Return the config whose phases are the cloning, "plain", which is measured and not trained, and the arms."""
    names = [f"arm{number}" for number in range(len(contrast.arms))]
    given = {"plain": ALONE.algorithm} | {
        name: arm.algorithm for name, arm in zip(names, contrast.arms.values(), strict=True)
    }
    c = seeds.config(size, SUMS, given, learning_rate=3e-4)
    c.phase.clone.task = contrast.clone
    if size.seeds > 2:
        c.phase.clone.batch.prompts = 128
    for name, arm in zip(names, contrast.arms.values(), strict=True):
        phase = c.phase[name]
        phase.learner.minibatches = 4 if size.seeds > 2 else 1
        phase.task, phase.batch.samples, phase.seam.reward = arm.task, arm.samples, arm.reward or None
        phase.world.update({"players": arm.players, "trained": arm.trained, "swap": arm.swap})
    if any("second" in arm.players for arm in contrast.arms.values()):
        c.module.second = rljax.module()
    return c


def verdicts(step: Any, policy: types.Tree, verifier: types.Tree, count: int) -> float:
    """Return the share of true verdicts on what a policy writes on held-out problems, at temperature 1.

    Right and wrong answers count equally.
    """
    index, sampler = jnp.arange(count, dtype=jnp.int32), step.setup.settings.sampler
    rows = step.play(policy, index, seeds.key(1_000_003), "heldout", 4, sampler, {"second": verifier})
    order = np.lexsort((np.asarray(rows.agent), np.asarray(rows.episode)))
    right = (np.asarray(rows.outcome) == types.Outcome.CORRECT)[order].reshape(-1, 2)[:, 0]
    true = np.asarray(rows.parts["verdict"])[order].reshape(-1, 2)[:, 1] > 0.5
    return float(np.mean([true[right == x].mean() for x in (False, True)]))


def start(contrast: Contrast, size: seeds.Size) -> Any:
    """Return the function that runs all arms of a seed: {"clone" or arm: {"curve", "verdicts"}}."""
    built = seeds.build(config(contrast, size))
    measured = built["plain"]

    def measure(state: types.TrainState) -> float:
        return seeds.answered(measured, state.params["policy"], size.prompts, 4)

    def one(seed: int) -> dict[str, Any]:
        clones = []
        for number in range(1 + max(arm.clone for arm in contrast.arms.values())):
            state = seeds.begin(built["clone"], None, seed + 1000 * number)
            state, _ = seeds.train(built["clone"], state, seed + 1000 * number, size.clone)
            clones.append(state.params["policy"])
        found: dict[str, Any] = {"clone": {"curve": [(0, seeds.answered(measured, clones[0], size.prompts, 4))]}}
        for number, (name, arm) in enumerate(contrast.arms.items()):
            step, given = built[f"arm{number}"], {"policy": clones[0]}
            if "second" in arm.players:
                given["second"] = clones[arm.clone]
            state = step.begin(None, seeds.key(seed), jax.tree.map(jnp.copy, given))
            state, curve = seeds.train(step, state, seed, size.steps, measure, max(1, size.steps // EVALUATIONS))
            found[name] = {"curve": curve}
            if arm.trained and "verdict" in step.setup.task.parts:  # about what the clone writes
                verifiers = {"clone": clones[0], name: state.params["second"]}
                for who in [who for who in verifiers if "verdicts" not in found[who]]:
                    found[who]["verdicts"] = verdicts(step, clones[0], verifiers[who], size.prompts)
            print(f"seed {seed}, {name}: {found[name]}", flush=True)
        return found

    return one


def value(found: Mapping[str, Any], quantity: str) -> float:
    """Return a quantity of a run, see ``Contrast``."""
    if quantity == "verdicts":
        return found["verdicts"]
    points = [share for step, share in found["curve"] if step > 0] or [found["curve"][0][1]]
    return points[-1] if quantity == "end" else float(np.mean(points))


def table(contrast: Contrast, stored: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page: claims, and what each arm reached, in percent."""
    cases = []
    for claim in contrast.claims:
        arm = {name: [value(run[name], claim.quantity) for run in stored] for name in (claim.second, claim.first)}
        gap = intervals.difference(*(dict(enumerate(v)) for v in arm.values()), bounds=intervals.UNIT)
        cases.append((claim.text, gap, claim.margin, claim.below))
    lines = arms.decided(cases)
    lines += ["", "| arm | pass@1 during the run | at the end | verdicts |", "| --- | --- | --- | --- |"]
    for name in ("clone", *contrast.arms):
        cells = []
        for quantity in ("pass@1", "end", "verdicts"):
            known = all(quantity != "verdicts" or "verdicts" in run[name] for run in stored)
            cells.append(seeds.percent([value(run[name], quantity) for run in stored]) if known else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(only: Sequence[str], out: pathlib.Path, quick: bool = False) -> None:
    """Run the contrasts, print their tables and draw their figures."""
    size = seeds.QUICK if quick else FULL
    out.mkdir(parents=True, exist_ok=True)
    for name in only:
        contrast, numbers = CONTRASTS[name], range(size.seeds)
        stored = seeds.resumed(out / f"{name}.json", size, numbers, lambda c=contrast: start(c, size), what="arms")
        print(table(contrast, stored))
        curves = {arm: [run[arm]["curve"] for run in stored] for arm in contrast.arms}
        seeds.draw(curves, f"{name}: held-out pass@1", out / f"{name}.png")


if __name__ == "__main__":
    given = seeds.arguments(__doc__, CONTRASTS)
    main(given.only, given.out, given.quick)
