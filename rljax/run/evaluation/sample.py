"""Sample completions of a prompt from a checkpoint.

    python -m rljax sample WORKDIR [--prompt TEXT] [--samples 4] [--temperature 1.0]
    python -m rljax sample runs/first --prompt "12+34="

Without --prompt, prompts are read from standard input, one per line. A run whose task asks by the chat template is
asked in the same way: the prompt is the content of the user's message. --messages continues a whole conversation.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import flags

from rljax import environments, sampling, types
from rljax.data import documents, storage, tokenizers
from rljax.environments import traits
from rljax.language import messages, settings
from rljax.run import programs
from rljax.run.evaluation import loading
from rljax.run.producers import verified
from rljax.sampling import processors


def complete(
    program: programs.Program,
    params: types.Tree,
    text: str | Sequence[Mapping[str, str]],
    *,
    samples: int = 4,
    temperature: float | None = None,
    chat: bool | None = None,
    system: str = "",
    seed: int = 0,
    phase: int = -1,
    **filters: float | None,
) -> list[dict[str, Any]]:
    """Return completions of a prompt, sampled as the run samples.

    Args:
      program: the run.
      params: the policy's parameters.
      text: the prompt, or the messages of a conversation, mappings with "role" and "content".
      samples: number of completions.
      temperature: divisor of the logits; 0 is greedy; None: the run's ``config.sampler.temperature``.
      chat: whether a prompt is written as a user's message, by the chat template, after the messages with which the
        task begins; None: if the task asks that way. Messages are always written by the template.
      system: system prompt, which replaces the task's, written by the template; "": the task's.
      seed: seed of the random draws.
      phase: index in ``program.phases`` of the phase whose task, stop strings and sampler are used.
      **filters: filters of ``config.sampler``, such as ``top_k=20``; None or absent: the run's.

    Returns:
      For each completion a dictionary: "text", "logp" (of the whole completion, unfiltered, in nats) and "finish"; the
      ids "token", and their log-probs "behaviour_logp" under the distribution drawn from.

    Raises:
      ValueError: the prompt is empty, longer than the task's prompt length, or has characters unknown to the tokenizer;
        a sampling setting is out of range; or there is no chat template, or it rejects the messages.
    """
    compiled = program.steps[phase]
    if traits.traits(compiled.setup.task).pictures is not None:
        raise ValueError(f"prompt {text!r}: prompts of task {compiled.setup.task.name!r} have pictures; use evaluate.")
    ids = _prompt(program.tokenizer, environments.opening(compiled.setup.task), text, chat, system)
    length = compiled.setup.task.prompt_length
    if not ids or len(ids) > length:
        raise ValueError(f"prompt {text!r}: has {len(ids)} tokens; must have 1 to {length} (the task's prompt_length).")
    if program.tokenizer.unk in ids:
        raise ValueError(f"prompt {text!r}: has characters that are unknown to the tokenizer.")
    token, mask = tokenizers.padded([ids], length, program.tokenizer.pad, left=True)
    prompts = types.Prompts(token=jax.numpy.asarray(token), mask=jax.numpy.asarray(mask), index=jax.numpy.zeros(1, int))
    keys = sampling.row_keys(jax.random.key(seed), 0, jax.numpy.zeros(samples, int), jax.numpy.arange(samples))
    given = {"temperature": temperature, **filters, "rescore": "unfiltered"}
    given = {name: value for name, value in given.items() if value is not None}
    sampler = dataclasses.replace(compiled.setup.settings.sampler, **given)
    out = compiled.generate(params, prompts, keys, samples, sampler)
    out = jax.device_get(out)
    texts = verified.texts(program.tokenizer, out.token, out.mask)
    return [
        {
            "text": text,
            "logp": float(out.raw_logp[i].sum()),
            "finish": types.Finish(int(out.finish[i])).name.lower(),
            "token": out.token[i][out.mask[i] > 0].tolist(),
            "behaviour_logp": out.behaviour_logp[i][out.mask[i] > 0].tolist(),
        }
        for i, text in enumerate(texts)
    ]


def _prompt(
    tokenizer: tokenizers.Tokenizer,
    opening: Sequence[Mapping[str, str]] | None,
    text: str | Sequence[Mapping[str, str]],
    chat: bool | None,
    system: str,
) -> list[int]:
    """Return the ids of a prompt, or of a conversation that the template writes."""
    if isinstance(text, str):
        if not system and not (opening is not None if chat is None else chat):
            return tokenizer.prompt(text)
        text = [*(opening or ()), {"role": "user", "content": text}]
    if system:
        text = [{"role": "system", "content": system}, *(m for m in text if m["role"] != "system")]
    return tokenizer.encode(tokenizer.chat(text))


def _messages(path: str) -> list[dict[str, str]]:
    """Read a conversation: a JSON list of objects with "role" and "content"."""
    try:
        listed = documents.parse(documents.content(storage.path(path)), path)
        return [{"role": str(m["role"]), "content": str(m["content"])} for m in listed]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f'--messages={path}: not a JSON list of {{"role", "content"}} ({error!r})') from error


def define_flags() -> None:
    """Define the flags of this command."""
    loading.define_flags()
    flags.DEFINE_string("prompt", None, "Prompt; default: read prompts from standard input.")
    flags.DEFINE_string("messages", None, "File with a JSON list of messages with role and content, to continue.")
    flags.DEFINE_string("system", "", "System prompt; default: the task's.")
    flags.DEFINE_bool("chat", None, "Ask by the chat template; default: if the task does.")
    flags.DEFINE_integer("samples", 4, "Completions per prompt.", lower_bound=1)
    flags.DEFINE_float("temperature", None, "Divisor of the logits, 0 is greedy; default: the run's.", lower_bound=0.0)
    for field in settings.fields(sampling.SamplerConfig):
        if field.path[0] in processors.FILTERS:
            define = flags.DEFINE_integer if field.type is int else flags.DEFINE_float
            define(field.path[0], None, f"{field.help} Default: the run's.")
    flags.DEFINE_integer("seed", 0, "Seed of the random draws.")


def main(argv: Sequence[str]) -> None:
    """Load a checkpoint and print completions of prompts."""
    f, workdir = flags.FLAGS, messages.argument(argv, "the work directory of a run")
    program, params, step = loading.of_flags(workdir)
    if program.settings.model.kind != "transformer":
        raise ValueError(f"{workdir}: a run of a control world, which completes no text; evaluate plays its episodes")
    number = program.number(step - 1)
    print(f"step {step}; a prompt of this run looks like {program.tasks[number].text(0, 'heldout')!r}")
    names = ("samples", "temperature", *processors.FILTERS, "chat", "system", "seed")
    options: dict[str, Any] = {name: f[name].value for name in names}
    one = f.messages or f.prompt  # None: each line of standard input
    for text in (line.rstrip("\n") for line in sys.stdin) if one is None else [one]:
        try:
            asked = _messages(f.messages) if f.messages else text
            completions = complete(program, params, asked, phase=number, **options)
        except ValueError as error:
            if one is not None:
                raise
            print(f"error: {messages.printable(error)}", file=sys.stderr)
            continue
        for completion in completions:
            start = text if isinstance(asked, str) else ""
            print(f"{start}{completion['text']}    logp {completion['logp']:.2f}, {completion['finish']}")
