"""The parts of a step, timed one by one, with their floating-point operations and bytes."""

import dataclasses
import resource
import statistics
import sys
import time
from typing import Any

import jax

from rljax import bench, types
from rljax.models import adapters
from rljax.training import optimizers, phases, steps


def _weights(setup: phases.Setup) -> int:
    """Return the number of weights in the layers' matrices."""
    a = setup.networks["policy"].architecture
    return a.layers * (a.width * a.head_size * (2 * a.heads + 2 * a.kv_heads) + 3 * a.width * a.hidden)


def flops(setup: phases.Setup, prompt: int, tokens: float, prompts: int, mean: float) -> float:
    """Return the model FLOPs of one forward pass: each prompt once, without padding and without recomputation.

    2 for each weight and token; 4 H K for each query and key in its context; the head for completion tokens only.

    Args:
      setup: what the step is compiled for.
      prompt: tokens per prompt.
      tokens: completion tokens.
      prompts: number of prompts.
      mean: completion tokens in the context of a completion token, on average.

    Returns:
      Floating-point operations.
    """
    a, weights = setup.networks["policy"].architecture, _weights(setup)
    keys = tokens * (prompt + mean) + prompts * prompt * (prompt + 1) / 2
    dense = 2 * weights * (tokens + prompts * prompt) + 2 * a.vocabulary * a.width * tokens
    return dense + 4 * a.layers * a.heads * a.head_size * keys


def weight_bytes(setup: phases.Setup) -> int:
    """Return the bytes of the weights read to decode one token."""
    a = setup.networks["policy"].architecture
    return (_weights(setup) + a.vocabulary * a.width) * jax.numpy.dtype(a.dtype).itemsize


def token_bytes(setup: phases.Setup) -> int:
    """Return the bytes of the keys and values of one token."""
    a = setup.networks["policy"].architecture
    return 2 * a.layers * a.kv_heads * a.head_size * jax.numpy.dtype(a.dtype).itemsize


def peak_memory() -> int:
    """Return the peak bytes in use: of the first device if it reports them, else of this process."""
    stats = jax.devices()[0].memory_stats() or {}
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return stats.get("peak_bytes_in_use") or kilobytes * (1 if sys.platform == "darwin" else 1024)


@dataclasses.dataclass
class CompiledStep:
    """A step with its state, to run repeatedly.

    Attributes:
      step: the step.
      state: the train state after the last run.
      key: the run's key.
      first: seconds of the first call, which compiles.
    """

    step: steps.Step
    state: types.TrainState
    key: types.Key
    first: float

    def run(self) -> None:
        """Run one step and wait for its metrics."""
        assert self.step.fused is not None
        self.state, metrics = self.step.fused(self.state, self.key)
        self.metrics = jax.block_until_ready(metrics)


def compile_step(step: steps.Step) -> CompiledStep:
    """Compile a step and run it once."""
    key = jax.random.key(0, impl="threefry2x32")
    result = CompiledStep(step, step.begin(None, key), key, 0.0)
    start = time.perf_counter()
    result.run()
    result.first = time.perf_counter() - start
    return result


def split(compiled: CompiledStep, repeats: int) -> list[dict[str, Any]]:
    """Time the parts of a step: prefill, decode, score, log-probs, gradient, optimizer.

    "log-probs" is a separate pass over finished rows, for comparison; an on-policy step has none. The time of decode is
    that of the rollout minus prefill and score, the time of the gradient that of the update minus the optimizer.
    """
    setup, state, key = compiled.step.setup, compiled.state, compiled.key
    model = setup.networks["policy"]
    prompts = setup.task.prompts(compiled.step.next_prompts(state, key).index, "train")
    compile_s: dict[str, float] = {}

    def timed(name: str, function: Any, *arguments: Any) -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        compile_s[name] = time.perf_counter() - start
        run = lambda: jax.block_until_ready(function(*arguments))  # noqa: E731
        return statistics.median(bench.seconds(run, repeats))

    def prefill(params: types.Tree) -> Any:
        weights = model.decode_params(params)
        return model.prefill(
            weights,
            prompts.token,
            prompts.mask,
            setup.samples,
            setup.task.completion_length,
            setup.settings.sampler.cache_block,
        )

    params = state.params["policy"]
    seconds = {"prefill": timed("prefill", jax.jit(prefill), params)}
    both = timed("decode", compiled.step.rollout, state, key)
    rows = compiled.step.rollout(state, key)
    verify: Any = jax.jit(lambda r: setup.verify(r.index, "train", r.action.token, r.mask))
    seconds["score"] = timed("score", verify, rows)
    seconds["decode"] = both - seconds["prefill"] - seconds["score"]
    score = jax.jit(lambda p, r: phases.score(setup, "policy", p, r, types.Needs()).logp)
    seconds["log-probs"] = timed("log-probs", score, params, rows)

    def update() -> None:
        compiled.state, metrics = compiled.step.update(compiled.state, rows, key)
        jax.block_until_ready(metrics)

    update_s = timed("gradient", update)
    tx, opt_state = setup.phase.optimizers[0], compiled.state.opt_state[0]
    params = adapters.trained(compiled.state.params["policy"])
    apply = jax.jit(lambda g, p, o: optimizers.apply(tx, g, jax.numpy.zeros(()), p, o))
    seconds["optimizer"] = timed("optimizer", apply, params, params, opt_state)
    seconds["gradient"] = update_s - seconds["optimizer"]
    return _rows(setup, rows, seconds, compile_s)


def _rows(setup: phases.Setup, rows: types.Rollout, seconds: dict[str, float], compile_s: dict[str, float]) -> list:
    """Return the table of times with tokens, FLOPs and bytes."""
    length = jax.numpy.sum(rows.mask, axis=1)
    tokens, longest = float(length.sum()), float(length.max())
    context = float(jax.numpy.sum(length * (length + 1) / 2)) / tokens
    prompt, count = setup.task.prompt_length, setup.prompts
    forward = flops(setup, prompt, tokens, count, context)
    prefill = flops(setup, prompt, 0, count, 0)
    read = longest * weight_bytes(setup) + token_bytes(setup) * (tokens * context + longest * count * prompt)
    work = {
        "prefill": (count * prompt, prefill, 0.0),
        "decode": (tokens, forward - prefill, read),
        "score": (tokens, 0.0, 0.0),
        "log-probs": (tokens, forward, 0.0),
        "gradient": (tokens, 3 * forward, 0.0),
        "optimizer": (tokens, 0.0, 0.0),
    }
    return [
        {
            "part": name,
            "ms": 1e3 * seconds[name],
            "tokens_per_s": work[name][0] / seconds[name],
            "flops": work[name][1],
            "bytes": work[name][2],
            "compile_s": compile_s[name],
        }
        for name in work
    ]
