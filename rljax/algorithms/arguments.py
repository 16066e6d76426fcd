"""What the arguments of recipes mean: the ``Args`` of a recipe's documentation.

An argument named in ``SHARED`` means the same in every recipe that does not describe one of that name itself. Range and
default are read from the signature, which is their only place.
"""

import inspect
from collections.abc import Callable, Mapping

from rljax import transforms
from rljax.language import hints

SHARED: Mapping[str, str] = {
    "low": "distance of the clip's lower bound from ratio 1",
    "high": "distance of the clip's upper bound from ratio 1",
    "dual": "bound of the loss of negative advantages, in units of -A; None: no bound",
    "cap": "largest importance weight of a token",
    "kl": "coefficient of the KL to the reference, in nats; 0 leaves out the term and the scores of the reference",
    "entropy": "coefficient of the entropy bonus, in nats; 0 leaves it out",
    "epsilon": "added to the standard deviation, in units of the reward",
    "gamma": "discount of later rewards for each token",
    "lam": "lambda of the advantage estimates: 1 uses whole returns, 0 the next value",
    "oversample": "prompts sampled for each prompt that is kept",
    "demonstrations": "demonstrations of the task in each group",
    "length": "tokens by which the sum over a row is divided; None: the sampler's limit",
    "lag": "age of the oldest tokens that are trained on, in versions of the policy",
    "module": "name of the module of the config that is trained, ``config.module.NAME``",
    "teachers": "names of modules of the config, whose distributions are averaged; none: the reference",
    "value_range": "least and greatest return, for a critic that classifies returns into bins; None: a critic of one "
    "number",
    "critic_epochs": "passes of the critic over a batch; None: as many as the policy makes",
    "smoothing": "probability that the preference of a pair is wrong",
    "ties": "threshold below which a difference of rewards R is a tie; None: rows of equal reward are no pair",
    "center": "coefficient of the squared sum of the two rewards R of a pair",
    "weights": "names of reward parts, each with its weight",
    "like": "public system whose settings are the defaults; DIFFERENCES.md lists them",
}


def documentation(recipe: Callable, signature: inspect.Signature) -> str:
    """Return the docstring of a recipe with an entry for each argument: its meaning, what is allowed, its default.

    Args:
      recipe: the function; its docstring may describe arguments itself, in a last section ``Args``.
      signature: of the recipe, with all arguments that a call may have.
    """
    text, _, section = (inspect.getdoc(recipe) or "").partition("\n\nArgs:\n")
    meanings = {**SHARED, **_entries(section)}
    entries = [_entry(p, meanings.get(name, "")) for name, p in signature.parameters.items()]
    return "\n".join([f"{text}\n\nArgs:", *entries]) if entries else text


def _entries(section: str) -> dict[str, str]:
    """Return the meaning of each argument that a section ``Args`` describes."""
    entries: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith("   "):
            entries[name] += f" {line.strip()}"
        elif line.strip():
            name, _, meaning = line.strip().partition(": ")
            entries[name] = meaning
    return {name: meaning.removesuffix(".") for name, meaning in entries.items()}


def _entry(parameter: inspect.Parameter, meaning: str) -> str:
    required = parameter.default is parameter.empty
    default = "required" if required else f"by default {transforms.describe(parameter.default)}"
    values = ", ".join(filter(None, [hints.describe(parameter.annotation), default]))
    return _wrapped(f"  {parameter.name}: {meaning}{'. ' * bool(meaning)}{values[:1].upper()}{values[1:]}.")


def _wrapped(text: str) -> str:
    """Break a text into lines of at most 116 characters; ``textwrap`` would be a third of the time of the import."""
    lines = [""]
    for word in text.split(" "):
        fits = len(lines[-1]) + len(word) < 116
        lines = [*lines[:-1], f"{lines[-1]} {word}"] if fits else [*lines, f"     {word}"]
    return "\n".join(line[1:] for line in lines)
