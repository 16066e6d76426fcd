"""Report: one self-contained page about a run, ``report.html`` in its work directory.

    python -m rljax report DIR              writes it from the files of the run, also while the run goes
    python -m rljax report DIR --live       serves it at 127.0.0.1 and rebuilds it when files change; Ctrl-C ends it

A run writes it when it ends or is interrupted, unless config.log.report is False.
"""

import datetime
import hashlib
import http.server
import pathlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from rljax.data import storage
from rljax.host import workdirs
from rljax.language import messages
from rljax.run.reports import completions, curves, facts, runs
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
        head.append(script(refresh))
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


_FILES = ("config.json", *(f"{name}.jsonl" for name in runs.LOGS))


def script(seconds: float) -> html.Html:
    """Return a script that loads the page again once the server has another one.

    Args:
      seconds: between two questions to the server.
    """
    text = pathlib.Path(__file__).with_name("pages").joinpath("live.html").read_text().rstrip()
    return html.Html(text.replace("MILLISECONDS", f"{seconds * 1000:.0f}"))


class Server(http.server.ThreadingHTTPServer):
    """Serves a page at / and the version of its sources at /version.

    Args:
      place: the work directory whose files are watched.
      port: at 127.0.0.1; 0: any free port.
      make: returns the page.
    """

    daemon_threads = True

    def __init__(self, place: runs.Path, port: int, make: Callable[[], str]):
        super().__init__(("127.0.0.1", port), _Handler)
        self._place, self._make = storage.path(place), make
        self._page: tuple[str, bytes] | None = None
        self._lock = threading.Lock()  # a page is made once, and the process has one set of matplotlib's settings

    def version(self) -> str:
        """Return a digest of the sizes of the files that the page is made of."""
        sizes = [storage.size(self._place / name) if storage.exists(self._place / name) else -1 for name in _FILES]
        return hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]

    def page(self) -> bytes:
        """Return the page of the files as they are now."""
        with self._lock:
            version = self.version()
            if self._page is None or self._page[0] != version:
                self._page = version, self._make().encode()
            return self._page[1]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/version":
            self._answer(200, "text/plain", self.server.version().encode())
        elif self.path.partition("?")[0] in ("/", "/report.html"):
            try:
                self._answer(200, "text/html; charset=utf-8", self.server.page())
            except (ValueError, OSError) as error:  # a file is being written; the reader loads the page again
                self._answer(503, "text/plain; charset=utf-8", str(error).encode())
        else:
            self._answer(404, "text/plain", b"not found")

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""


def serve(place: runs.Path, port: int, make: Callable[[], str]) -> None:
    """Serve a page until Ctrl-C.

    Raises:
      FileNotFoundError: there is no run.
      ValueError: the port is in use, or a file is malformed.
    """
    try:
        server = Server(place, port, make)
    except OSError as error:
        raise ValueError(f"--port={port}: {error.strerror}; choose another, or 0 for any free one") from error
    with server:
        server.page()
        try:  # who reads that Ctrl-C ends it may press it at once
            print(f"http://127.0.0.1:{server.server_address[1]}/ shows {place}; Ctrl-C ends it", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_bool("live", False, "Serve the report and rebuild it when files change, until Ctrl-C.")
    flags.DEFINE_integer("port", 8000, "Port of --live; 0: any free port.", 0, 65535)


def main(argv: Sequence[str]) -> None:
    """Write or serve the report of a work directory."""
    workdir = messages.argument(argv, "a work directory")
    if flags.FLAGS.live:
        serve(workdir, flags.FLAGS.port, lambda: page(runs.read(workdir), refresh=5.0))
        return
    start = datetime.datetime.now()
    path = write(workdir)
    seconds = (datetime.datetime.now() - start).total_seconds()
    print(f"{path}: {storage.size(storage.path(path)):,} bytes, {seconds:.1f} s")
