"""What the arguments of recipes mean: the ``Args`` of a recipe's documentation.

An argument named in arguments.txt means the same in every recipe that does not describe one of that name itself. Range
and default are read from the signature, which is their only place.
"""

import inspect
import pathlib
from collections.abc import Callable, Mapping

from rljax import transforms
from rljax.language import hints


def entries(section: str) -> dict[str, str]:
    """Return the meaning of each name of a text with lines such as ``name: its meaning.``, and what continues them."""
    meanings: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith("   "):
            meanings[name] += f" {line.strip()}"
        elif line.strip():
            name, _, meaning = line.strip().partition(": ")
            meanings[name] = meaning
    return {name: meaning.removesuffix(".") for name, meaning in meanings.items()}


SHARED: Mapping[str, str] = entries(pathlib.Path(__file__).with_name("arguments.txt").read_text())


def documentation(recipe: Callable, signature: inspect.Signature) -> str:
    """Return the docstring of a recipe with an entry for each argument: its meaning, what is allowed, its default.

    Args:
      recipe: the function; its docstring may describe arguments itself, in a last section ``Args``.
      signature: of the recipe, with all arguments that a call may have.
    """
    text, _, section = (inspect.getdoc(recipe) or "").partition("\n\nArgs:\n")
    meanings = {**SHARED, **entries(section)}
    lines = [_entry(p, meanings.get(name, "")) for name, p in signature.parameters.items()]
    return "\n".join([f"{text}\n\nArgs:", *lines]) if lines else text


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
