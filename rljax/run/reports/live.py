"""A server of one page at 127.0.0.1, which is made anew when the files of a work directory change."""

import hashlib
import http.server
import pathlib
import threading
from collections.abc import Callable
from typing import Any

from rljax.data import storage
from rljax.run.reports import runs
from rljax.run.reports.pages import html

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
