"""Sample completions of a prompt from a checkpoint.

    python -m rljax sample --workdir DIR --prompt "12+34=" [--samples 4] [--temperature 1.0]

Without --prompt, prompts are read from standard input, one per line.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import flags, logging

from rljax import sampling, types
from rljax.language import messages
from rljax.run import evaluate, host_rollouts, programs


def complete(
    program: programs.Program,
    params: types.Tree,
    text: str,
    *,
    samples: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
    phase: int = -1,
) -> list[dict[str, Any]]:
    """Return completions of a prompt.

    Args:
      program: the run.
      params: the policy's parameters.
      text: the prompt.
      samples: number of completions.
      temperature: divisor of the logits; 0 is greedy. top_k, top_p and min_p are not applied.
      seed: seed of the random draws.
      phase: index in ``program.phases`` of the phase whose task and stop strings are used.

    Returns:
      For each completion a dictionary: "text", "logp" (of the whole completion, unfiltered, in nats) and "finish".

    Raises:
      ValueError: the prompt is empty, longer than the task's prompt length, or has characters unknown to the tokenizer.
    """
    ids = program.tokenizer.prompt(text)
    compiled = program.steps[phase]
    length = compiled.setup.task.prompt_length
    if not ids or len(ids) > length:
        raise ValueError(f"prompt {text!r}: has {len(ids)} tokens; must have 1 to {length} (the task's prompt_length).")
    if program.tokenizer.unk in ids:
        raise ValueError(f"prompt {text!r}: has characters that are unknown to the tokenizer.")
    token = np.full((1, length), program.tokenizer.pad, np.int32)
    token[0, length - len(ids) :] = ids
    mask = (np.arange(length) >= length - len(ids)).astype(np.float32)[None]
    prompts = types.Prompts(token=jax.numpy.asarray(token), mask=jax.numpy.asarray(mask), index=jax.numpy.zeros(1, int))
    keys = sampling.row_keys(jax.random.key(seed), 0, jax.numpy.zeros(samples, int), jax.numpy.arange(samples))
    unfiltered = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "rescore": "unfiltered"}
    sampler = dataclasses.replace(compiled.setup.settings.sampler, temperature=temperature, **unfiltered)
    out = compiled.generate(params, prompts, keys, samples, sampler)
    token, mask, logp, finish = jax.device_get((out.token, out.mask, out.raw_logp, out.finish))
    return [
        {"text": t, "logp": float(p), "finish": types.Finish(int(f)).name.lower()}
        for t, p, f in zip(host_rollouts.texts(program.tokenizer, token, mask), logp.sum(axis=1), finish, strict=True)
    ]


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("workdir", None, "Work directory of a run.", required=True)
    flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.")
    flags.DEFINE_list("allow_code", [], evaluate.ALLOW_CODE)
    flags.DEFINE_string("prompt", None, "Prompt; default: read prompts from standard input.")
    flags.DEFINE_integer("samples", 4, "Completions per prompt.", lower_bound=1)
    flags.DEFINE_float("temperature", 1.0, "Divisor of the logits; 0 is greedy.", lower_bound=0.0)
    flags.DEFINE_integer("seed", 0, "Seed of the random draws.")


def main(argv: Sequence[str]) -> None:
    """Load a checkpoint and print completions of prompts."""
    if len(argv) > 1:
        raise ValueError(f"unexpected argument {argv[1]!r}")
    logging.set_verbosity(logging.WARNING)
    f = flags.FLAGS
    program, params, step = evaluate.load(f.workdir, step=f.step, allow_code=f.allow_code)
    number = program.number(step - 1)
    print(f"step {step}; a prompt of this run looks like {program.tasks[number].text(0, 'heldout')!r}")
    prompts = [f.prompt] if f.prompt is not None else (line.rstrip("\n") for line in sys.stdin)
    for text in prompts:
        try:
            completions = complete(
                program, params, text, samples=f.samples, temperature=f.temperature, seed=f.seed, phase=number
            )
        except ValueError as error:
            if f.prompt is not None:
                raise
            print(f"error: {messages.printable(error)}", file=sys.stderr)
            continue
        for completion in completions:
            print(f"{text}{completion['text']}    logp {completion['logp']:.2f}, {completion['finish']}")
