"""Report: one self-contained page about a run, ``report.html`` in its work directory.

    python -m rljax report DIR              writes it from the files of the run, also while the run goes
    python -m rljax report DIR --live       serves it at 127.0.0.1 and rebuilds it when files change; Ctrl-C ends it

A run writes it when it ends or is interrupted, unless config.log.report is False.
"""

import datetime
import warnings
from collections.abc import Sequence

from absl import flags

from rljax.data import storage
from rljax.host import workdirs
from rljax.language import messages
from rljax.run.reports import completions, curves, facts, live, runs
from rljax.run.reports.pages import html

NAME = "report.html"


class ReportWarning(UserWarning):
    """The report of a run could not be written; the run itself is complete."""


def page(run: runs.Run, refresh: float | None = None) -> str:
    """Return the report of a run.

    Args:
      run: its files.
      refresh: seconds after which a page that is served asks whether there is a newer one; None: it does not.

    Returns:
      The HTML document.
    """
    sections = [
        ("Phases", facts.phases(run)),
        ("Curves", curves.section(run)),
        ("Held-out accuracy", curves.evaluations(run)),
        ("Completions", completions.section(run)),
        ("Time and memory", facts.costs(run)),
        ("Warnings", facts.warnings(run)),
        ("Next commands", facts.commands(run)),
        ("What ran", facts.description(run)),
    ]
    title = f"{run.config.get('name', 'run')}: {storage.path(run.path).name}"
    head = [completions.head()]
    if refresh is not None:
        head.append(live.script(refresh))
    return html.page(title, sections, lead=facts.status(run), head=html.join(head))


def write(place: runs.Path, logs: runs.Path | None = None) -> str:
    """Write the report of a work directory; return its path.

    Args:
      place: the work directory, local or gs://.
      logs: the local folder of its logs, if they are elsewhere.
    """
    target = storage.path(place) / NAME
    storage.write(target, page(runs.read(place, logs)))
    return str(target)


def save(place: workdirs.WorkDirectory) -> None:
    """Write the report of a run that ends. It fails with a warning: what a run computed is more than its report."""
    try:
        write(place.path, place.logs)
    except Exception as error:
        text = f"{place.path}: {NAME} was not written ({type(error).__name__}: {storage.brief(error)})"
        warnings.warn(text, ReportWarning, stacklevel=2)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_bool("live", False, "Serve the report and rebuild it when files change, until Ctrl-C.")
    flags.DEFINE_integer("port", 8000, "Port of --live; 0: any free port.", 0, 65535)


def main(argv: Sequence[str]) -> None:
    """Write or serve the report of a work directory."""
    workdir = messages.argument(argv, "a work directory")
    if flags.FLAGS.live:
        live.serve(workdir, flags.FLAGS.port, lambda: page(runs.read(workdir), refresh=5.0))
        return
    start = datetime.datetime.now()
    path = write(workdir)
    seconds = (datetime.datetime.now() - start).total_seconds()
    print(f"{path}: {storage.size(storage.path(path)):,} bytes, {seconds:.1f} s")
