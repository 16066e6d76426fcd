"""The process that forks boxes: ``main``. It never reads a job, which goes from the worker to the box.

Each box has a guard, its parent, outside the box's process namespace: it kills the box when the worker closes its end
of the control socket, and otherwise writes the exit status there.
"""

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence

from rljax.environments.verifiers.sandbox import calls, kernel, programs


def main(sock: socket.socket, bare: bool, packages: Mapping[str, str], modules: Sequence[str]) -> None:
    """Fork boxes until the socket closes.

    Args:
      sock: on it, "map" asks for ``kernel.identities``; then a line of JSON says why the kernel refused, or null; then
        each message has a control socket and a job's socket, for a box.
      bare: use no namespaces.
      packages: installed packages that boxes may use, by their names.
      modules: of them, imported once for all boxes.
    """
    refused = None
    if not bare:
        try:
            kernel.enter(lambda: _ask(sock), packages)
        except OSError as error:
            refused = str(error)
    if modules and not refused:
        _load(modules, {os.path.dirname(path) for path in packages.values()} if bare else {kernel.PACKAGES}, bare)
    sock.sendall(json.dumps(refused).encode() + b"\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards leave no zombies
    user = os.getpid() if bare else 0
    while not refused:
        message, handles, _, _ = socket.recv_fds(sock, 1, 2)
        if not message:
            break
        if not os.fork():
            sock.close()
            try:
                _guard(socket.socket(fileno=handles[0]), handles[1], user)
            finally:
                os._exit(1)
        for handle in handles:
            os.close(handle)


def _load(modules: Sequence[str], folders: set[str], bare: bool) -> None:
    if not bare:
        kernel.folder(1 << 22)  # for what they write; each box has another folder there
    sys.path += sorted(folders)
    for name in modules:
        importlib.import_module(name)


def _ask(sock: socket.socket) -> None:
    sock.sendall(b"map\n")
    if sock.recv(1) != b"m":
        raise OSError("the user of the sandbox cannot be set")


def _guard(control: socket.socket, channel: int, user: int) -> None:
    """Fork a box, wait until it ends or the worker needs it no more, and leave nothing behind."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    place = ""
    if user:
        kernel.adopt()
        place = tempfile.mkdtemp(prefix="box-")
    else:
        kernel.enter_box()
    child = os.fork()
    if not child:
        try:
            control.close()
            programs.run(channel, lambda size: _settle(size, place, user))
        finally:
            os._exit(1)
    os.close(channel)
    handle = os.pidfd_open(child)
    poll = select.poll()
    for each in (handle, control.fileno()):
        poll.register(each, select.POLLIN)
    ready = [number for number, _ in poll.poll()]
    status = None
    if handle in ready:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if place:
        _end_others()
        shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(status).encode() + b"\n")
    os._exit(0)


def _settle(size: int, place: str, user: int) -> None:
    """Enter the folder of a box, and give up what its program must not have."""
    os.setsid()
    if not place:
        kernel.folder(size)
        kernel.become(kernel.INSIDE)
    else:
        os.chdir(place)
        try:  # root can, unless it is root of a container without the right
            os.chown(place, kernel.outside(user), kernel.outside(user))
            kernel.become(kernel.outside(user))
        except OSError:
            kernel.become(os.geteuid())
    kernel.restrain()
    calls.refuse()


def _end_others() -> None:
    """Kill the descendants of a box without namespaces: as their parents end they become this process's children."""
    from rljax.environments.workers import supervisor

    supervisor.end_descendants({})
