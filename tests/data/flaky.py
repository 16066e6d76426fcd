"""An object store on loopback that fails on demand: a proxy in front of gcp-storage-emulator.

The proxy also implements behavior of the real store that the emulator lacks: a response names the generation of its
object, ``ifGenerationMatch`` and ``ifGenerationNotMatch`` are respected (without both tensorstore sometimes fails with
"Malformed StorageGeneration"), and the status of a completed resumable upload can be queried repeatedly.
"""

import contextlib
import dataclasses
import http.client
import http.server
import json
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
STOPPED = threading.Event()  # never set; a held request waits for it


@dataclasses.dataclass
class Fault:
    """A fault of the next ``count`` matching requests, after ``skip`` of them are served.

    ``kind`` is a status such as "503", or "refuse" (the connection closes before the request is forwarded), "forget"
    (the store executes it, the response is lost), "cut" (half of the response is sent), "hold" (no response).
    ``match`` is a pattern searched in "METHOD /path?query", followed for an upload by the start of its body.
    """

    kind: str
    match: str
    count: int = 1
    skip: int = 0
    hits: int = 0


class Store:
    """The emulator and the proxy; ``environment`` points a process at the proxy."""

    def __init__(self, port: int, emulator: int):
        self.port, self.emulator = port, emulator
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.held = threading.Event()
        self.finished: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}  # responses by upload_id
        self.one_by_one = threading.Lock()
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
        """Replace the planned faults, and clear the recorded requests."""
        with self._lock:
            self.faults, self.seen = list(faults), []
        self.held.clear()

    def take(self, line: str) -> str:
        """Record a request; return the kind of its fault, "" for none."""
        with self._lock:
            self.seen.append(line)
            for fault in self.faults:
                if fault.hits < fault.count and re.search(fault.match, line, re.DOTALL):
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    fault.hits += 1
                    return fault.kind
        return ""

    def make_folder(self, name: str) -> None:
        """Create a folder as the web console does: an empty object whose name ends with a slash."""
        kind = 'multipart/related; boundary="=0="'
        meta = f'--=0=\nContent-Type: application/json; charset=UTF-8\n\n{{"name": "{name}/"}}'
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.emulator}/upload/storage/v1/b/{BUCKET}/o?uploadType=multipart",
            data=f"{meta}\n--=0=\nContent-Type: text/plain\n\n\n--=0=--".encode(),
            headers={"Content-Type": kind},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def names(self) -> list[str]:
        """List the objects of the bucket, without the proxy."""
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
        with self.store.one_by_one:
            status, headers, content = self._conditional(body)
        if kind == "forget":
            return self._drop()
        self._answer(status, headers, content, half=kind == "cut")

    def _conditional(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        target = urllib.parse.urlsplit(self.path).path.partition("/o/")[2]
        name = query.get("name", [""])[0]
        if query.get("uploadType") == ["multipart"]:  # the name is in the first part
            name = json.loads(body.split(b"\n\n")[1].split(b"\n")[0])["name"]
        target = target or urllib.parse.quote(name, safe="")
        session = query.get("upload_id", [""])[0]
        if session in self.store.finished:
            return self.store.finished[session]
        if session:
            answer = self._forward(self.command, self.path, body)
            if answer[0] == 200:
                self.store.finished[session] = answer
            return answer
        if not target or not query.keys() & {"alt", "ifGenerationMatch", "ifGenerationNotMatch"}:
            return self._forward(self.command, self.path, body)
        status, _, content = self._forward("GET", f"/storage/v1/b/{BUCKET}/o/{target}", b"")
        generation = json.loads(content)["generation"] if status == 200 else "0"
        if query.get("ifGenerationMatch", [generation])[0] != generation:
            return 412, [], b""
        if query.get("ifGenerationNotMatch", [""])[0] == generation:
            return 304 if status == 200 else 404, [], b""
        status, headers, content = self._forward(self.command, self.path, body)
        return status, [*headers, ("x-goog-generation", generation)], content

    def _forward(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        onward = http.client.HTTPConnection("127.0.0.1", self.store.emulator, timeout=60)
        with contextlib.closing(onward):
            onward.request(method, path, body, dict(self.headers))
            answer = onward.getresponse()
            return answer.status, answer.getheaders(), answer.read()

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


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore errors of clients that were killed or disconnected."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def store():
    """Start emulator and proxy; objects are in memory and are lost when they stop."""
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
        server = _Server(("127.0.0.1", 0), _Handler)
        proxy = Store(server.server_address[1], emulator)
        server.RequestHandlerClass = type("Handler", (_Handler,), {"store": proxy})
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield proxy
        server.shutdown()
        server.server_close()
    finally:
        process.terminate()
        process.wait(10)
