"""What a step is made for: the algorithm, the networks, the task and the sizes."""

import dataclasses
from collections.abc import Mapping

import jax
import optax

from rljax import environments, models, sampling, types
from rljax.algorithms import interpreter
from rljax.models import packing, scoring
from rljax.sampling import stopping


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything a step is made for. Sizes are those of one step."""

    algorithm: types.Algorithm
    optimizers: tuple[optax.GradientTransformation, ...]  # one for each objective
    sampler: models.Model  # the policy, laid out as a rollout wants it
    models: Mapping[str, models.Model]  # by module; "policy" is always there
    task: environments.Task  # bound to its tokenizer
    stop: tuple[int, ...]
    pad: int
    prompts: int
    samples: int
    processors: sampling.Processors
    mesh: jax.sharding.Mesh
    strings: stopping.Table | None = None  # texts that end a completion
    rescore: bool = False  # renormalise over the support the sampler kept
    epochs: int = 1
    minibatches: int = 1
    microbatches: int = 1
    peek: int = 0  # rows of each step handed out with its metrics
    share: bool = False  # read a prompt once for all its completions
    lanes: int = 0  # packed rows for the completions of a prompt; 0: a row each
    vocabulary: int = 0  # tokens of the vocabulary at once in the head; 0: all
    keep_logits: bool = False  # for the backward pass
    block: int = 0  # columns of the sampler's cache that come into use together; 0: all
    rounding: str = "nearest"  # of bfloat16 parameters after an update, or "stochastic"
    offload: bool = False  # keep optimizer state in the host's memory between updates
    compact: int = 0  # how often the sampler's batch may shrink by half

    def shared(self, rows: int) -> int:
        """Return how many adjacent ones of ``rows`` rows have one prompt that is read once; 0: none."""
        whole = self.algorithm.source.origin == "policy" and rows % self.samples == 0
        return self.samples if self.share and whole and self.samples > 1 else 0

    def home(self, module: str) -> str:
        """Return the module whose parameters answer for ``module``: a critic may stand on the policy's trunk."""
        return module if module in self.models else "policy"

    @property
    def rows(self) -> int:
        """Rows that a step trains on."""
        return self.prompts * self.samples

    @property
    def temperature(self) -> float:
        """Temperature of every log-prob; people's demonstrations have none."""
        return self.processors.temperature if self.algorithm.source.origin == "policy" else 1.0


def modules(algorithm: types.Algorithm) -> tuple[str, ...]:
    """Return the modules an algorithm trains or reads: "policy" and, where needed, "value" and "reward"."""
    needs = interpreter.needs(algorithm)
    trained = {o.module for o in algorithm.objectives}
    return ("policy", *(m for m in ("value", "reward") if m in trained or getattr(needs, m)))


def score(
    plan: Plan,
    module: str,
    params: types.Tree,
    rows: types.Rollout,
    needs: types.Needs,
    *,
    kept: bool | None = None,
    reference: types.Tree | None = None,
    places: packing.Places | None = None,
) -> types.Scores:
    """Score rows with a module of the plan, at its temperature and under its support unless ``kept`` says otherwise."""
    module = plan.home(module)
    return scoring.score(
        plan.models[module],
        params,
        rows,
        needs,
        temperature=plan.temperature,
        kept=plan.rescore if kept is None else kept,
        reference=reference,
        vocabulary=plan.vocabulary,
        keep_logits=plan.keep_logits,
        samples=plan.shared(rows.mask.shape[0]),
        places=places,
    )
