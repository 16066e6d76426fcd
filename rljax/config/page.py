"""List the fields of a config.

python -m rljax config              all fields, with default, allowed values and meaning
python -m rljax config sampler      the fields whose name contains "sampler"
python -m rljax config --page       the page of all fields, configs/README.md
"""

import pathlib
import sys
from collections.abc import Iterable, Sequence

from absl import flags
from rich import box, console, table

from rljax.config import schema
from rljax.language import settings
from rljax.models.config import ModuleConfig
from rljax.training.config import PhaseConfig

_HEAD = pathlib.Path(__file__).with_name("page.txt").read_text()


def _fields() -> list[settings.Field]:
    """Return all fields of a config; fields of phases begin with "phase.NAME", fields of modules with "module.NAME"."""
    phase = [settings.Field(("phase", "NAME", *f.path), *_rest(f)) for f in settings.fields(PhaseConfig)]
    module = [settings.Field(("module", "NAME", *f.path), *_rest(f)) for f in settings.fields(ModuleConfig)]
    return [*settings.fields(schema.Config), *phase, *module]


def _rest(field: settings.Field) -> tuple:
    return field.hint, field.default, field.help, field.fixed


def _name(field: settings.Field) -> str:
    return ".".join(field.path)


def page() -> str:
    """Return the text of configs/README.md."""
    groups: dict[str, list[settings.Field]] = {}
    for field in _fields():
        groups.setdefault(".".join(field.path[:-1]), []).append(field)
    lines = [_HEAD]
    for name, fields in groups.items():
        lines += [
            f"### {name or 'the run'}",
            "",
            "| field | default | allowed | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for f in fields:
            mark = " *run*" if f.fixed else ""
            cells = f"`{f.path[-1]}`{mark}", f"`{f.default!r}`", f.allowed, f.help
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def show(fields: Iterable[settings.Field] = ()) -> None:
    """Print fields as a table; every field where none is given."""
    output = table.Table(box=box.SIMPLE_HEAD)
    for heading in ("config.", "default", "allowed", "meaning"):
        output.add_column(heading, overflow="fold")
    for f in fields or _fields():
        output.add_row(_name(f), repr(f.default), f.allowed, f.help)
    console.Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(output)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_boolean("page", False, "Print configs/README.md.")


def main(argv: Sequence[str]) -> None:
    """Print the fields whose name contains the argument, or the page."""
    if len(argv) > 2:
        raise ValueError(f"expected at most one text, got {' '.join(argv[1:])}")
    if flags.FLAGS.page:
        print(page(), end="")
        return
    text = argv[1] if len(argv) == 2 else ""
    fields = [f for f in _fields() if text in _name(f)]
    if not fields:
        raise ValueError(f"no name of a field contains {text!r}")
    show(fields)
