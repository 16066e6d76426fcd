"""Where a step's time goes: each part timed by itself, with its floating-point work and its bytes."""

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
    """Count the weights of the layers' matrices."""
    a = setup.networks["policy"].architecture
    return a.layers * (a.width * a.head_size * (2 * a.heads + 2 * a.kv_heads) + 3 * a.width * a.hidden)


def flops(setup: phases.Setup, prompt: int, tokens: float, prompts: int, mean: float) -> float:
    """Return the model FLOPs of one forward pass: each prompt once, real tokens only, no pass made again.

    2 for each weight and token; 4 H K for each query and key it sees; the head on completions alone. ``mean``: the
    mean over tokens of the completion tokens each sees.
    """
    a, weights = setup.networks["policy"].architecture, _weights(setup)
    keys = tokens * (prompt + mean) + prompts * prompt * (prompt + 1) / 2
    dense = 2 * weights * (tokens + prompts * prompt) + 2 * a.vocabulary * a.width * tokens
    return dense + 4 * a.layers * a.heads * a.head_size * keys


def weight_bytes(setup: phases.Setup) -> int:
    """Return the bytes of the weights that a decoded token reads."""
    a = setup.networks["policy"].architecture
    return (_weights(setup) + a.vocabulary * a.width) * jax.numpy.dtype(a.dtype).itemsize


def token_bytes(setup: phases.Setup) -> int:
    """Return the bytes of one token's keys and values."""
    a = setup.networks["policy"].architecture
    return 2 * a.layers * a.kv_heads * a.head_size * jax.numpy.dtype(a.dtype).itemsize


def peak_memory() -> int:
    """Return the most bytes in use so far: of the first device, where it tells, or of this process."""
    stats = jax.devices()[0].memory_stats() or {}
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return stats.get("peak_bytes_in_use") or kilobytes * (1 if sys.platform == "darwin" else 1024)


@dataclasses.dataclass
class Whole:
    """The whole step, run again and again."""

    step: steps.Step
    state: types.TrainState
    key: types.Key
    first: float  # seconds of the first call, compiling

    def run(self) -> None:
        """Make one step."""
        assert self.step.fused is not None
        self.state, metrics = self.step.fused(self.state, self.key)
        self.metrics = jax.block_until_ready(metrics)


def whole(step: steps.Step) -> Whole:
    """Compile a step and run it once."""
    key = jax.random.key(0, impl="threefry2x32")
    made = Whole(step, step.begin(None, key), key, 0.0)
    start = time.perf_counter()
    made.run()
    made.first = time.perf_counter() - start
    return made


def split(made: Whole, repeats: int) -> list[dict[str, Any]]:
    """Time the parts of a step: prefill, decode, score, log-probs, gradient, optimizer.

    "log-probs" is a pass of its own over finished rows, for comparison: an on-policy step makes none. Decode is
    the rollout less prefill and score, gradient is the update less the optimizer.
    """
    setup, state, key = made.step.setup, made.state, made.key
    model = setup.networks["policy"]
    _, index = made.step.next_prompts(state, key)
    prompts = setup.task.prompts(index, "train")
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

    params, task = state.params["policy"], setup.task
    seconds = {"prefill": timed("prefill", jax.jit(prefill), params)}
    both = timed("decode", made.step.rollout, state, key)
    rows = made.step.rollout(state, key)
    verify: Any = jax.jit(lambda r: task.verify(r.index, "train", r.action.token, r.mask))  # type: ignore
    seconds["score"] = timed("score", verify, rows)
    seconds["decode"] = both - seconds["prefill"] - seconds["score"]
    score = jax.jit(lambda p, r: phases.score(setup, "policy", p, r, types.Needs()).logp)
    seconds["log-probs"] = timed("log-probs", score, params, rows)

    def update() -> None:
        made.state, metrics = made.step.update(made.state, rows, key)
        jax.block_until_ready(metrics)

    update_s = timed("gradient", update)
    tx, opt_state = setup.phase.optimizers[0], made.state.opt_state[0]
    params = adapters.trained(made.state.params["policy"])
    apply = jax.jit(lambda g, p, o: optimizers.apply(tx, g, jax.numpy.zeros(()), p, o))
    seconds["optimizer"] = timed("optimizer", apply, params, params, opt_state)
    seconds["gradient"] = update_s - seconds["optimizer"]
    return _rows(setup, rows, seconds, compile_s)


def _rows(setup: phases.Setup, rows: types.Rollout, seconds: dict[str, float], compile_s: dict[str, float]) -> list:
    """Join times with tokens, FLOPs and bytes."""
    length = jax.numpy.sum(rows.mask, axis=1)
    tokens, longest = float(length.sum()), float(length.max())
    seen = float(jax.numpy.sum(length * (length + 1) / 2)) / tokens
    prompt, count = setup.task.prompt_length, setup.prompts
    forward = flops(setup, prompt, tokens, count, seen)
    prefill = flops(setup, prompt, 0, count, 0)
    read = longest * weight_bytes(setup) + token_bytes(setup) * (tokens * seen + longest * count * prompt)
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
