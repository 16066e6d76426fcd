"""List the fields of a config.

python -m rljax config              every field: default, what is allowed, what it means
python -m rljax config sampler      those whose name contains a text
python -m rljax config --page       the page of all fields, configs/README.md
"""

import sys
from collections.abc import Iterable, Sequence

from absl import app, flags
from rich import box, console, table

from rljax.config import schema
from rljax.language import settings
from rljax.training.config import PhaseConfig

_HEAD = """# Configs

A config is a short Python file with `get_config(arg)`, which returns `rljax.default_config()` with some fields
changed. Its header says the command, the hardware, the time and the score.

| config | what it is |
| --- | --- |
| [quickstart.py](quickstart.py) | the main job: learn to carry, from random weights, in minutes on a CPU |
| [countdown.py](countdown.py) | reach a target number with an arithmetic expression |
| [gsm8k.py](gsm8k.py) | GSM8K from random weights; answers judged by worker processes |
| [pretrained.py](pretrained.py) | a published checkpoint on GSM8K or MATH |

Fields are set in the file, on the command line (`--config.learner.epochs=2`), or with `--set`, which also reaches the
arguments of a call (`--set algorithm.kl=0.01`). `python -m rljax config TEXT` lists the fields whose name contains
TEXT. A field that does not exist, or a value that does not fit, is an error that names the field and what is allowed,
before any device work.

## Phases

A run is a sequence of phases (`config.phases`). Each phase has the fields of the section "phase" below, and may set
any field of the run that is not marked *run* for itself: `config.phase.main.task`,
`config.phase.warm.learner.microbatches`, `config.phase.main.seam.penalty`, `config.phase.main.sampler.temperature`. A
field that a phase does not set is the run's. A phase that names an algorithm of its own is not edited by
`config.seam`, only by its own `seam`.

At a phase boundary the parameters carry over. Each task keeps its cursor. Rows in flight carry over if task, lengths
and source are equal. The optimizer state carries over if the phase says `reset_optimizer=False` and its tree is
equal; otherwise it is reset, and the log and `algorithm.txt` say so. The tokenizer is trained on the text of all
tasks. An evaluation names its task.

## Fields

*run* marks a field that holds for the whole run, so that a phase cannot set it.
"""


def _fields() -> list[settings.Field]:
    """Return every field of a config; those of a phase alone begin with "phase.NAME"."""
    own = [settings.Field(("phase", "NAME", *f.path), *_rest(f)) for f in settings.fields(PhaseConfig)]
    return [*settings.fields(schema.Config), *own]


def _rest(field: settings.Field) -> tuple:
    return field.hint, field.default, field.help, field.fixed


def _name(field: settings.Field) -> str:
    return ".".join(field.path)


def page() -> str:
    """Return configs/README.md."""
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


def show(fields: Iterable[settings.Field]) -> None:
    """Print fields as a table."""
    shown = table.Table(box=box.SIMPLE_HEAD)
    for heading in ("config.", "default", "allowed", "meaning"):
        shown.add_column(heading, overflow="fold")
    for f in fields:
        shown.add_row(_name(f), repr(f.default), f.allowed, f.help)
    console.Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(shown)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_boolean("page", False, "Print configs/README.md.")


def main(argv: Sequence[str]) -> None:
    """Print the fields that the arguments ask for."""
    if len(argv) > 2:
        raise app.UsageError(f"at most one text to look for, got {' '.join(argv[1:])}")
    if flags.FLAGS.page:
        print(page(), end="")
        return
    text = argv[1] if len(argv) == 2 else ""
    fields = [f for f in _fields() if text in _name(f)]
    if not fields:
        raise app.UsageError(f"no field contains {text!r}")
    show(fields)
