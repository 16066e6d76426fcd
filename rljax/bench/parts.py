"""A step that runs again and again; its parts, timed one by one, with FLOPs and bytes; the ceilings of the machine."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import bench, models, types
from rljax.host import memory
from rljax.models import adapters
from rljax.run.reports.pages import tables
from rljax.training import phases, steps
from rljax.training.learning import optimizers

_SIZES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 1024), (5120, 256, 768))


class Runner:
    """A step with its train state; each call returns when its work is done.

    Attributes:
      step: the step.
      key: the run's key.
      state: the train state after the last call.
      rows: the rows of the last ``rollout``.
      metrics: the metrics of the last ``whole``.
    """

    def __init__(
        self, step: steps.Step, key: types.Key, produce: Callable[[types.TrainState], types.Rollout] | None = None
    ):
        """Make the train state; ``produce`` makes rows of it, and is the step's rollout by default."""
        self.step, self.key, self.state = step, key, step.begin(None, key)
        self._produce = produce
        self.rows: Any = None
        self.metrics: Any = None

    def rollout(self) -> None:
        """Make the rows of the state."""
        self.rows = jax.block_until_ready(
            self._produce(self.state) if self._produce else self.step.rollout(self.state, self.key)
        )

    def update(self) -> None:
        """Update on the rows of the last rollout."""
        self.state, metrics = self.step.update(self.state, self.rows, self.key)
        jax.block_until_ready(metrics)

    def whole(self) -> None:
        """Run the step: one program, or rows that are produced and the update on them."""
        if self._produce:
            rows = self._produce(self.state)
            self.state, self.metrics = self.step.update(self.state, rows, self.key)
        else:
            assert self.step.fused is not None
            self.state, self.metrics = self.step.fused(self.state, self.key)
        jax.block_until_ready(self.metrics)


def first_call(call: Callable[[], None]) -> float:
    """Return the seconds of a first call, which compiles."""
    return bench.seconds(call, 1)[0]


def weights(model: models.Model) -> float:
    """Return the number of weights of the layers' matrices that multiply a token: of experts, the selected ones."""
    a, layers = model.architecture, jax.eval_shape(model.init, jax.random.key(0))["layers"]
    chosen = a.experts_per_token / a.experts if a.experts else 1.0
    shares = {name: chosen if name in ("gate", "up", "down") else 1.0 for name in (*models.MATRICES, "router")}
    return sum(math.prod(layers[name].shape) * share for name, share in shares.items() if name in layers)


def flops(setup: phases.Setup, prompt: int, tokens: float, prompts: int, mean: float) -> float:
    """Return the model FLOPs of one forward pass: each prompt once, without padding and without recomputation.

    2 for each weight and token (Kaplan et al., arXiv 2001.08361); 4 H K for each query and key in its context, which
    includes its own; the head for completion tokens only.

    Args:
      setup: what the step is compiled for.
      prompt: tokens per prompt.
      tokens: completion tokens.
      prompts: number of prompts.
      mean: completion tokens in the context of a completion token, on average.

    Returns:
      Floating-point operations.
    """
    a = setup.networks["policy"].architecture
    keys = tokens * (prompt + mean) + prompts * prompt * (prompt + 1) / 2
    dense = 2 * weights(setup.networks["policy"]) * (tokens + prompts * prompt) + 2 * a.vocabulary * a.width * tokens
    return dense + 4 * a.layers * a.heads * a.head_size * keys


def weight_bytes(setup: phases.Setup) -> float:
    """Return the bytes of the weights read to decode one token."""
    a = setup.networks["policy"].architecture
    return (weights(setup.networks["policy"]) + a.vocabulary * a.width) * jnp.dtype(a.dtype).itemsize


def token_bytes(setup: phases.Setup) -> int:
    """Return the bytes of the keys and values of one token."""
    a = setup.networks["policy"].architecture
    return 2 * a.layers * a.kv_heads * a.head_size * jnp.dtype(a.dtype).itemsize


def compile_step(step: steps.Step) -> tuple[Runner, float]:
    """Compile a step and run it once; return it with the seconds of that."""
    run = Runner(step, jax.random.key(0, impl="threefry2x32"))
    return run, first_call(run.whole)


def whole(compiled: Runner, first: float, repeats: int) -> dict[str, Any]:
    """Time the whole step, before anything else has used memory; return a JSON-able record.

    Args:
      compiled: the step, which has run once.
      first: the seconds of that.
      repeats: steps to time.
    """
    times = bench.seconds(compiled.whole, repeats)
    return {
        "devices": jax.device_count(),
        "step_ms": 1e3 * statistics.median(times),
        "best_ms": 1e3 * min(times),
        "first_step_s": first,
        "peak_gib": (memory.peak_of_devices(jax.devices()[:1]) or memory.peak()) / 2**30,
        "slot_utilisation": float(compiled.metrics["slot_utilisation"]),
        "sampler_gap": float(compiled.metrics["sampler_gap"]),
        "params": sum(x.size for x in jax.tree.leaves(compiled.state.params["policy"])),
    }


def split(compiled: Runner, repeats: int) -> list[dict[str, Any]]:
    """Time the parts of a step: prefill, decode, score, log-probs, gradient, optimizer.

    "log-probs" is a separate pass over finished rows, for comparison; an on-policy step has none. The time of decode is
    the time of the rollout minus prefill and score, the time of the gradient the update's minus the optimizer's.
    """
    setup, state, key = compiled.step.setup, compiled.state, compiled.key
    model = setup.networks["policy"]
    prompts = setup.task.prompts(compiled.step.next_prompts(state, key).index, "train")
    compile_s: dict[str, float] = {}

    def timed(name: str, function: Any, *arguments: Any) -> float:
        run = lambda: jax.block_until_ready(function(*arguments))  # noqa: E731
        compile_s[name] = first_call(run)
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
    both = timed("decode", compiled.rollout)
    rows = compiled.rows
    verify: Any = jax.jit(lambda r: setup.verify(r.index, "train", r.action.token, r.mask))
    seconds["score"] = timed("score", verify, rows)
    seconds["decode"] = both - seconds["prefill"] - seconds["score"]
    score = jax.jit(lambda p, r: phases.score(setup, "policy", p, r, types.Needs()).logp)
    seconds["log-probs"] = timed("log-probs", score, params, rows)

    update_s = timed("gradient", compiled.update)
    tx, opt_state = setup.phase.optimizers[0], compiled.state.opt_state[0]
    params = adapters.trained(compiled.state.params["policy"])
    apply = jax.jit(lambda g, p, o: optimizers.apply(tx, g, jnp.zeros(()), p, o))
    seconds["optimizer"] = timed("optimizer", apply, params, params, opt_state)
    seconds["gradient"] = update_s - seconds["optimizer"]
    return _rows(setup, rows, seconds, compile_s)


def _rows(setup: phases.Setup, rows: types.Rollout, seconds: dict[str, float], compile_s: dict[str, float]) -> list:
    """Return the table of times with tokens, FLOPs and bytes."""
    length = jnp.sum(rows.mask, axis=1)
    tokens, longest = float(length.sum()), float(length.max())
    context = float(jnp.sum(length * (length + 1) / 2)) / tokens
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


# --- the ceilings of the machine ----------------------------------------------------------------------------------


def matmul(dtype: str, repeats: int = 10) -> dict[str, float]:
    """Return the highest measured FLOP/s of a product of ``dtype`` matrices at each size, by name "MxKxN"."""
    rates = {}
    for m, k, n in _SIZES:
        a, b = (jax.random.normal(jax.random.key(i), s).astype(dtype) for i, s in enumerate(((m, k), (k, n))))
        product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
        rates[f"{m}x{k}x{n}"] = 2 * m * k * n / _best(product, (a, b), repeats)
    return rates


def bandwidth(repeats: int = 10, mib: int = 256) -> float:
    """Return the highest measured bytes/s at which a sum reads an array of ``mib`` MiB."""
    x = jnp.ones((mib << 18,), jnp.float32)
    return 4 * x.size / _best(jax.jit(jnp.sum), (x,), repeats)


def ceilings(setup: phases.Setup) -> dict[str, Any]:
    """Return "matmul", of the policy's type, and "bandwidth"."""
    return {"matmul": matmul(setup.networks["policy"].architecture.dtype), "bandwidth": bandwidth()}


def _best(function: Any, arguments: tuple, repeats: int) -> float:
    jax.block_until_ready(function(*arguments))
    return min(bench.seconds(lambda: jax.block_until_ready(function(*arguments)), repeats))


def table(record: dict[str, Any]) -> str:
    """Return the record of a step, with its parts, the machine's ceilings and peers, as text."""
    best, bandwidth = max(record["matmul"].values()), record["bandwidth"]
    sizes = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in record["matmul"].items())
    lines = [
        f"{record['shape']}, {record['lengths']}, {record['new_tokens']} tokens: step {record['step_ms']:.0f} ms "
        f"(best {record['best_ms']:.0f}), peak {record['peak_gib']:.2f} GiB, "
        f"first step {record['first_step_s']:.1f} s, slot utilization {100 * record['slot_utilisation']:.0f} %, "
        f"sampler gap {record['sampler_gap']:.1e}",
        f"matmul GFLOP/s: {sizes}; memory {bandwidth / 1e9:.1f} GB/s; {record['devices']} x {record['device']}",
    ]
    rows = []
    for part in record["parts"]:
        seconds = part["ms"] / 1e3
        shares = (part["flops"] / seconds / best, part["bytes"] / seconds / bandwidth)
        cells = [f"{100 * share:.0f} %" if share else "" for share in shares]
        numbers = f"{part['ms']:.1f}", f"{part['tokens_per_s']:.0f}"
        rows.append([part["part"], *numbers, *cells, f"{part['compile_s']:.1f}"])
    columns = ["part", "ms", "tokens/s", "of matmul", "of memory", "compile s"]
    lines += tables.Table(columns, rows).lines()
    for peer in record["peers"]:
        spread = f"{peer['ratios'][0]:.3f} to {peer['ratios'][-1]:.3f}"
        lines.append(
            f"rljax / {peer['peer']}: {peer['ratio']:.3f} ({spread}); {peer['peer']}: step "
            f"{statistics.median(peer['step_s']):.2f} s, peak {peer['peak_gib']:.2f} GiB "
            f"(ratio {record['peak_gib'] / peer['peak_gib']:.2f})"
        )
    return "\n".join(lines)
