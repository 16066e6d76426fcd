"""Gold reward against the KL from the base: RL and best-of-n, on reward models of three sizes and on ensembles.

python -m experiments.overoptimisation.gold

The base of each seed is a clone of faulty demonstrations. The verifier is the gold reward: it labels the pairs of the
reward models and measures, and neither pays in RL nor selects. ``ARMS`` is the only thing to extend. What each seed
gave is stored when it ends, in ``gold.json``; seeds that are there are not run again, and the page has all of them.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import rljax
from experiments.overoptimisation import page, scaling
from experiments.worlds import seeds
from rljax import types
from rljax.run.evaluation import ranking
from rljax.training import steps
from rljax.transforms import reward

TASK = "arithmetic(operands=2, digits=2, slip=0.6, noise=0.25)"  # that of the quickstart
MODEL = "implicit_bradley_terry(center=0.01)"
SIZES = ("small", "medium", "large")  # of what a reward model is trained on
MEMBERS = 3  # reward models of the medium size


@dataclasses.dataclass(frozen=True)
class Proxy:
    """The reward that is optimized: of one reward model, or of several."""

    models: tuple[str, ...]
    combine: str = "mean"

    @property
    def piece(self) -> str:
        """The reward piece, which names its models by number."""
        return f"implicit({_names(self.models)}, combine={self.combine!r})"


_ENSEMBLE = tuple(f"medium {number}" for number in range(MEMBERS))
ARMS = {
    "small": Proxy(("small",)),
    "medium": Proxy(_ENSEMBLE[:1]),
    "large": Proxy(("large",)),
    "mean of 3": Proxy(_ENSEMBLE),
    "worst of 3": Proxy(_ENSEMBLE, "worst"),
    "mean - variance of 3": Proxy(_ENSEMBLE, "uncertainty"),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    clone: int = 300  # steps on demonstrations
    demonstrations: int = 128  # of each of them
    updates: int = 40  # of a reward model
    pairs: tuple[int, int, int] = (4, 16, 64)  # prompts of each of them, of a small, a medium and a large one
    steps: int = 40  # of RL, of each arm, at most
    limit: float = 10.0  # nats of KL from the base at which RL ends
    prompts: int = 32  # of each of them
    samples: int = 8  # also of each prompt of a measurement
    learning_rate: float = 2e-4  # of RL
    every: int = 2  # steps of RL between two measurements
    heldout: int = 64  # prompts of a measurement
    pool: int = 64  # completions of each that best-of-n selects from
    layers: int = 2
    width: int = 96


QUICK = Size(
    seeds=(0, 1),
    clone=1,
    demonstrations=4,
    updates=1,
    pairs=(2, 3, 4),
    steps=2,
    prompts=2,
    every=1,
    heldout=4,
    pool=64,
    layers=1,
    width=16,
)


def _names(models: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"prm{number}" for number in range(len(models)))


def build(size: Size) -> dict[str, steps.Step]:
    """Return the steps: "clone", those of ``SIZES``, and of each arm "RL: ARM"; arms of one piece share theirs."""
    phases = {piece: f"rl{number}" for number, piece in enumerate(dict.fromkeys(arm.piece for arm in ARMS.values()))}
    c = rljax.default_config()
    c.task = TASK
    c.model.update({"layers": size.layers, "width": size.width, "heads": 2, "kv_heads": 2, "hidden": 3 * size.width})
    c.model.remat = "none"
    c.mesh.data = 1
    c.batch.update({"prompts": size.prompts, "samples": size.samples})
    for name in _names(_ENSEMBLE):
        c.module[name] = rljax.module()
    adam = "adamw(learning_rate={}, weight_decay=0.0)"
    c.phases = ("clone", *SIZES, *phases.values())
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": size.demonstrations}}
    c.phase.clone = rljax.phase(**clone, optimizer=adam.format(2e-3), warmup=min(30, size.clone))
    for name, prompts in zip(SIZES, size.pairs, strict=True):
        model = {"algorithm": MODEL, "steps": size.updates, "batch": {"prompts": prompts}}
        c.phase[name] = rljax.phase(**model, optimizer=adam.format(1e-3), warmup=min(10, size.updates))
    for piece, phase in phases.items():
        rl = {"algorithm": "rloo()", "seam": {"reward": piece}, "steps": size.steps}
        c.phase[phase] = rljax.phase(**rl, optimizer=adam.format(size.learning_rate), warmup=min(5, size.steps))
    built = seeds.build(c)
    arms = {f"RL: {name}": built[phases[arm.piece]] for name, arm in ARMS.items()}
    return {**{name: built[name] for name in ("clone", *SIZES)}, **arms}


def models(built: Mapping[str, steps.Step], base: types.TrainState, seed: int, size: Size) -> dict[str, types.Tree]:
    """Train the reward models of a seed, each on its own prompts and completions."""
    trained: dict[str, types.Tree] = {}
    for number, name in enumerate(sorted({model for arm in ARMS.values() for model in arm.models})):
        step, root = built[name.split()[0]], 100 * (seed + 1) + number
        state, _ = seeds.train(step, seeds.begin(step, base, root), root, size.updates)
        trained[name] = state.params["prm"]
    return trained


@dataclasses.dataclass(frozen=True)
class Judge:
    """The base, which is the reference, and the reward models, which score held-out completions."""

    step: steps.Step  # of a phase that trains a reward model
    base: types.Tree
    models: Mapping[str, types.Tree]
    size: Size

    def sampled(self, policy: types.Tree, key: types.Key) -> types.Rollout:
        """Return verified completions with the base's log-probs, ``samples`` of each prompt."""
        rows = ranking.sampled(self.step, policy, key, self.size.heldout, self.size.samples)
        return rows.replace(ref_logp=self.logp("policy", self.base, rows))

    def logp(self, module: str, params: types.Tree, rows: types.Rollout) -> types.Array:
        """Return the log-probs that a language model gives the tokens, ``[B, T]``."""
        logp = self.step.score(module, params, rows, types.Needs()).logp
        assert logp is not None
        return logp

    def scores(self, rows: types.Rollout, names: Sequence[str]) -> dict[str, types.Scores]:
        """Return the scores of reward models by name."""
        return {name: types.Scores(logp=self.logp("prm", self.models[name], rows)) for name in names}


def paid(proxy: Proxy, rows: types.Rollout, scores: Mapping[str, types.Scores]) -> types.Array:
    """Return what the reward piece of an arm pays rows, ``[B]``, given the scores of its models."""
    names = _names(proxy.models)
    piece = reward.implicit(names, combine=proxy.combine)
    rows = rows.replace(scores={name: scores[model] for name, model in zip(names, proxy.models, strict=True)})
    return piece.apply(rows, piece.init(), jax.random.key(0))[0].reward


def pools(judge: Judge) -> tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.float64]]]:
    """Return the gold rewards of the base's completions, [P, N], and each arm's proxy of them."""
    gold, proxy = [], {name: [] for name in ARMS}
    for chunk in range(judge.size.pool // judge.size.samples):
        rows = judge.sampled(judge.base, jax.random.fold_in(seeds.key(1_000_033), chunk))
        scores = judge.scores(rows, sorted({*judge.models}))
        gold.append(np.asarray(rows.reward, np.float64))
        for name, arm in ARMS.items():
            proxy[name].append(np.asarray(paid(arm, rows, scores), np.float64))

    def whole(chunks: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        return np.concatenate([x.reshape(-1, judge.size.samples) for x in chunks], axis=1)

    return whole(gold), {name: whole(x) for name, x in proxy.items()}


def trained(arm: steps.Step, proxy: Proxy, base: types.TrainState, seed: int, judge: Judge) -> page.Curve:
    """Train an arm of RL from the base and measure it, until its steps are done or its KL is at the limit."""
    curve = page.Curve([0], [], [], [])

    def measure(state: types.TrainState) -> None:
        rows = judge.sampled(state.params["policy"], seeds.key(1_000_003))
        assert rows.ref_logp is not None
        apart = judge.logp("policy", state.params["policy"], rows) - rows.ref_logp
        curve.kl.append(float(jnp.mean(jnp.sum(apart * rows.mask, axis=1))))
        curve.proxy.append(float(jnp.mean(paid(proxy, rows, judge.scores(rows, proxy.models)))))
        curve.gold.append(float(jnp.mean(rows.reward)))

    pairs = zip(_names(proxy.models), proxy.models, strict=True)
    frozen = {name: jax.tree.map(jnp.copy, judge.models[model]) for name, model in pairs}
    state = seeds.begin(arm, base, seed).replace(frozen=frozen)
    measure(state)
    while curve.at[-1] < judge.size.steps and curve.kl[-1] < judge.size.limit:
        count = min(judge.size.every, judge.size.steps - curve.at[-1])
        state, _ = seeds.train(arm, state, seed, count)
        curve.at.append(curve.at[-1] + count)
        measure(state)
    return curve


def one(built: Mapping[str, steps.Step], seed: int, size: Size) -> dict[str, page.Arm]:
    """Run a seed: the base, the reward models, best-of-n, and RL on each proxy alone."""
    base, _ = seeds.train(built["clone"], seeds.begin(built["clone"], None, seed), seed, size.clone)
    judge = Judge(built["large"], jax.tree.map(jnp.copy, base.params["policy"]), models(built, base, seed, size), size)
    gold, proxies = pools(judge)
    arms = {}
    for name, proxy in ARMS.items():
        values = (scaling.best_of_n(proxies[name], x, page.N).tolist() for x in (proxies[name], gold))
        best = page.Curve([*page.N], [scaling.best_of_n_kl(n) for n in page.N], *values)
        report = ranking.report(gold, proxies[name])
        ranked = report["accuracy"][0] if report["pairs"] else 0.5
        arms[name] = page.Arm(ranked, best, trained(built[f"RL: {name}"], proxy, base, seed, judge))
        print(f"seed {seed}, {name}: {arms[name]}", flush=True)
    return arms


def run(size: Size, file: pathlib.Path) -> list[dict[str, page.Arm]]:
    """Return the arms of each seed, those of earlier runs included; store them after each seed.

    Raises:
      ValueError: the file has seeds of another size.
    """

    def start():
        built = build(size)
        return lambda seed: {name: dataclasses.asdict(arm) for name, arm in one(built, seed, size).items()}

    stored = seeds.resumed(file, size, size.seeds, start)
    return [{name: page.arm(values) for name, values in arms.items()} for arms in stored]


def main(size: Size, out: pathlib.Path) -> None:
    """Run the study, print its tables, and write its figure and what the seeds gave."""
    out.mkdir(parents=True, exist_ok=True)
    results = run(size, out / "gold.json")
    print(page.table(results))
    page.draw(results, out / "gold.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="folder of the results")
    parser.add_argument("--seeds", default="0:5", help="from the first to before the last")
    given = parser.parse_args()
    numbers = tuple(range(*map(int, given.seeds.split(":"))))
    main(QUICK if given.quick else Size(seeds=numbers), given.out)
