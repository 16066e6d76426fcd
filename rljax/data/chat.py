"""Chat templates: Jinja in a sandbox, configured as in transformers, so that templates give the same texts."""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None  # JSON schemas

DATE = "2024-07-26"  # the date that the templates of Llama 3.1 print unless they are given another one
_LARGEST = 10**6  # of a product or a power in a template, a number or a length, and of the passes of its loops


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks the text of the assistant; rendered without the marks."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Any) -> Any:
        """Return the body of the tag."""
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Namespace(jinja2.utils.Namespace):
    """The target of ``{% set ns.x = ... %}``; it refuses names with an underscore, since templates are untrusted."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


class NoTemplate(ValueError):
    """The files of a tokenizer have no chat template."""


def render(
    template: str,
    messages: Messages,
    add_generation_prompt: bool,
    names: Mapping[str, Any],
    date: str = DATE,
    tools: Tools = None,
) -> str:
    """Write messages as text by a chat template.

    Args:
      template: Jinja source.
      messages: mappings with "role" and "content".
      add_generation_prompt: whether to end with the header of the assistant's turn.
      names: texts of special tokens by name, such as "bos_token".
      date: the date that templates print, YYYY-MM-DD; a prompt never depends on the day on which it is written.
      tools: JSON schemas of functions, as ``transformers.utils.get_json_schema`` writes them; None: no tools.

    Returns:
      The text.

    Raises:
      ValueError: the template is not valid Jinja, calls ``raise_exception``, or does what the sandbox forbids.
    """
    day = datetime.datetime.fromisoformat(date)
    try:
        compiled = _compiled(template)
        compiled.environment.passes = 0
        return compiled.render(
            messages=[dict(m) for m in messages],
            tools=[dict(tool) for tool in tools] if tools else None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=lambda form: day.strftime(form),
            date_string=day.strftime("%d %b %Y"),
            **names,
        )
    except Exception as error:  # templates run any arithmetic, so they raise anything
        raise ValueError(f"chat template: {str(error) or type(error).__name__}") from error


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox in which products, powers and the passes of loops have a limit."""

    intercepted_binops = frozenset(("*", "**"))
    passes = 0  # of all loops, since ``render`` began

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return a product or a power."""
        sizes = [len(x) if hasattr(x, "__len__") else abs(x) for x in (left, right)]
        if (operator == "**" and sizes[1] > 64) or max(sizes) > _LARGEST or sizes[0] * sizes[1] > _LARGEST:
            raise jinja2.exceptions.SecurityError(f"{operator}: a result above {_LARGEST:,}")
        return super().call_binop(context, operator, left, right)

    def count(self) -> None:
        """Count a pass of a loop."""
        self.passes += 1
        if self.passes > _LARGEST:
            raise jinja2.exceptions.SecurityError(f"loops of more than {_LARGEST:,} passes")


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["namespace"] = _Namespace
    tree = environment.parse(template)
    for loop in tree.find_all(jinja2.nodes.For):
        count = jinja2.nodes.Call(jinja2.nodes.EnvironmentAttribute("count"), [], [], None, None)
        loop.body.insert(0, jinja2.nodes.ExprStmt(count).set_lineno(loop.lineno).set_environment(environment))
    return environment.from_string(tree)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's tojson writes < as \u003c, for HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
