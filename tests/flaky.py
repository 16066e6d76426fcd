"""An object store on loopback that fails on demand: a proxy in front of gcp-storage-emulator."""

import contextlib
import dataclasses
import http.client
import http.server
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

BUCKET = "flaky-bucket"
STOPPED = threading.Event()  # never set; what a held request waits for


@dataclasses.dataclass
class Fault:
    """What the next ``count`` requests that match get.

    ``kind`` is a status such as "503", or "refuse" (the connection ends before the request is passed on), "forget"
    (the store does it, the answer is lost), "cut" (half of the answer comes), "hold" (no answer at all).
    ``match`` is sought in "METHOD /path?query" with, for an upload, the start of its body behind it.
    """

    kind: str
    match: str
    count: int = 1
    hits: int = 0


class Store:
    """The emulator and the proxy; ``environment`` points a process at the proxy."""

    def __init__(self, port: int, emulator: int):
        self.port, self.emulator = port, emulator
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.held = threading.Event()
        self._lock = threading.Lock()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the libraries read when they are first used."""
        url = f"http://127.0.0.1:{self.port}"
        return {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_GCE_CHECK": "true",
            "GCE_METADATA_ROOT": "127.0.0.1:1",
        }

    def plan(self, *faults: Fault) -> None:
        """Replace the faults to come, and forget what was seen."""
        with self._lock:
            self.faults, self.seen = list(faults), []
        self.held.clear()

    def take(self, line: str) -> str:
        """Note a request; return the kind of fault it gets, "" for none."""
        with self._lock:
            self.seen.append(line)
            for fault in self.faults:
                if fault.hits < fault.count and re.search(fault.match, line, re.DOTALL):
                    fault.hits += 1
                    return fault.kind
        return ""

    def names(self) -> list[str]:
        """List the objects of the bucket, past the proxy."""
        import json

        with urllib.request.urlopen(f"http://127.0.0.1:{self.emulator}/storage/v1/b/{BUCKET}/o", timeout=30) as answer:
            return sorted(item["name"] for item in json.load(answer).get("items", []))


class _Handler(http.server.BaseHTTPRequestHandler):
    store: Store

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = f"{self.command} {urllib.parse.unquote(self.path)}"
        kind = self.store.take(line + (f" {body[:300].decode(errors='replace')}" if self.command == "POST" else ""))
        if kind == "hold":
            self.store.held.set()
            STOPPED.wait(60)
        if kind in ("hold", "refuse"):
            return self._drop()
        if kind.isdecimal():
            return self._answer(int(kind), [("Content-Type", "text/plain")], b"on purpose")
        onward = http.client.HTTPConnection("127.0.0.1", self.store.emulator, timeout=60)
        with contextlib.closing(onward):
            onward.request(self.command, self.path, body, dict(self.headers))
            answer = onward.getresponse()
            content = answer.read()
        if kind == "forget":
            return self._drop()
        self._answer(answer.status, answer.getheaders(), content, half=kind == "cut")

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, half: bool = False) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("server", "date", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if half else content)
        if half:
            self._drop()

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _pass_on

    def log_message(self, *_: object) -> None:
        pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def store():
    """Start both; what they hold is in memory and goes with them."""
    emulator = _free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={emulator}"]
    process = subprocess.Popen(
        [*command, f"--default-bucket={BUCKET}", "--in-memory", "--quiet"],
        env={**os.environ, "PYTHONPATH": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{emulator}/", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        made = Store(server.server_address[1], emulator)
        server.RequestHandlerClass = type("Handler", (_Handler,), {"store": made})
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield made
        server.shutdown()
        server.server_close()
    finally:
        process.terminate()
        process.wait(10)
