"""Programs that attack the machine, and the sandbox without privileges."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from rljax import types
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import code, judging
from rljax.environments.verifiers.sandbox import kernel, start
from tests.environments.verifiers.code_cases import fenced, needs_namespaces

ROOT = pathlib.Path(__file__).parents[3]


# Each prints "held" if the protection holds; those with None do not end by themselves, or print too much.
ATTACKS = {
    "fork bomb": ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", None),
    "threads": (
        """
        import threading, time
        try:
            for i in range(1000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError: print("held")""",
        "held",
    ),
    "memory": ("try: x = bytearray(10**9)\nexcept MemoryError: print('held')", "held"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", None),
    "sleep": ("import time, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)", None),
    "endless output": ("while True: print('x' * 10000)", None),
    "endless loop": ("while True: pass", None),
    "a full disk": (
        """
        import errno
        try:
            for i in range(100): open(f"f{i}", "wb").write(bytes(10**6))
        except OSError as error: print("held" if error.errno == errno.ENOSPC else error)""",
        "held",
    ),
    "a large file": (
        """
        import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with open("f", "wb", buffering=0) as f:
                for i in range(100): f.write(bytes(10**6))
        except OSError as error: print("held")""",
        "held",
    ),
    "files of the machine": (
        """
        import os
        for path in ("/etc/passwd", "/etc/shadow", "/home", "/proc", "/sys", "/usr/bin", "/var", "SECRET", "ROOT"):
            try: print(path, os.listdir(path) if os.path.isdir(path) else open(path).read())
            except OSError: pass
        print("held")""",
        "held",
    ),
    "writing": (
        """
        import os, glob
        held = True
        for folder in ("/", "/usr/lib", "/lib", "/dev", os.path.dirname(os.__file__), "/root", "/dev/shm"):
            try: open(folder + "/x", "w").close(); held = False; print(folder)
            except OSError: pass
        print("held" if held else "")""",
        "held",
    ),
    "its folder": ("import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\nprint('held')", "held"),
    "sockets": (
        """
        import socket
        try: socket.create_connection(("127.0.0.1", PORT), 1); print("connected")
        except OSError: pass
        try: socket.create_connection(("1.1.1.1", 53), 1); print("connected")
        except OSError: pass
        try: socket.getaddrinfo("example.org", 80); print("resolved")
        except OSError: print("held")""",
        "held",
    ),
    "signals": (
        """
        import os, signal
        seen = []
        for pid in (PARENT, os.getppid() or PARENT, -1):
            try: os.kill(pid, signal.SIGKILL); seen += [pid] * (pid != -1)
            except OSError: pass
        print("held" if not seen else seen)""",
        "held",
    ),
    "more rights": (
        """
        import ctypes, os
        libc, right = ctypes.CDLL(None), []
        for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):
            if libc.unshare(flag) == 0: right.append(hex(flag))
        if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0: right.append("mount")
        for f in (lambda: os.setuid(0), lambda: os.chroot("/tmp"), lambda: os.mknod("/tmp/x", 0o60600, 2050)):
            try: f(); right.append("call")
            except OSError: pass
        print(right or "held")""",
        "held",
    ),
    "a daemon": (
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(600)
            os._exit(0)
        print("held")""",
        "held",
    ),
    "system calls": (
        """
        import ctypes, os
        libc, allowed = ctypes.CDLL(None), []
        for number in (101, 425, 321, 319):
            if os.uname().machine == "x86_64" and libc.syscall(number, 0, 0, 0, 0, 0) != -1: allowed.append(number)
        try: os.memfd_create("x"); allowed.append("memory")
        except OSError: pass
        print(allowed or "held")""",
        "held",
    ),
    "the environment": ("import os\nprint([n for n in os.environ if 'MARK' in n] or 'held')", "held"),
}


@needs_namespaces
@pytest.mark.full
def test_attacks_do_no_harm(monkeypatch, tmp_path):
    monkeypatch.setenv("AN_API_MARK", "1")
    (tmp_path / "secret").write_text("1")
    names = [*ATTACKS, "well-behaved"]
    attacks = {**ATTACKS, "well-behaved": ("print('held')", "held")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = {"PORT": str(server.getsockname()[1]), "PARENT": str(os.getpid()), "ROOT": str(ROOT)}
        words["SECRET"] = str(tmp_path / "secret")

        def source(name):
            text = attacks[name][0]
            for word, value in words.items():
                text = text.replace(word, value)
            return fenced(text)

        outputs = [{"inputs": [""], "outputs": [attacks[name][1] or "held"]} for name in names]
        with judging.Verifiers(code.Judge(seconds=2.0), VerifierConfig(workers=4, timeout=30)) as verifiers:
            scored = verifiers.submit([source(name) for name in names], outputs).result()
            assert scored.errors == []
            again = verifiers.submit(["print(1)"] * 8, [{"inputs": [""], "outputs": ["1"]}] * 8).result()
            assert again.reward.tolist() == [1.0] * 8
    for name, outcome in zip(names, scored.outcome, strict=True):
        expected = types.Outcome.CORRECT if attacks[name][1] else types.Outcome.WRONG
        assert outcome == expected, name
    timed_out = {name for name, value in zip(names, scored.parts["timed_out"], strict=True) if value}
    assert timed_out >= {"fork bomb", "sleep", "endless loop"}


def left(user, looks=60):
    """Return the processes of a user, when there are none or after that many looks."""
    processes = []
    for _ in range(looks):
        processes = []
        for status in pathlib.Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                text = status.read_text()
                if f"Uid:\t{user}\t" in text and "State:\tZ" not in text:
                    processes.append(text.splitlines()[0])
        if not processes:
            break
        time.sleep(0.05)
    return processes


@needs_namespaces
@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each sandbox a user of its own")
def test_nothing_is_left_of_a_box():
    sandbox = start.Sandbox()
    user = kernel.outside(sandbox._process.pid)
    for name in ("a daemon", "fork bomb", "well-behaved"):
        job = {"kind": "run", "source": textwrap.dedent(ATTACKS.get(name, ["print('held')"])[0]), "input": ""}
        with sandbox.start(job, start.Limits()) as running:
            deadline = time.monotonic() + (0.5 if name == "fork bomb" else 10)
            with contextlib.suppress(TimeoutError):
                assert running.output(deadline, 100) == b"held\n" and running.status(deadline) == 0
            if name == "fork bomb":
                assert 1 < len(left(user, looks=1)) <= start.Limits().processes
        assert left(user) == []
    sandbox.close()


# Becomes a user without privileges, in a namespace where, if "refused", the kernel allows no other one.
UNPRIVILEGED = """
    import ctypes, json, os, pathlib, sys, warnings
    from rljax.environments.verifiers import code
    from rljax.environments.verifiers.sandbox import kernel, start
    user, group = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        pathlib.Path("/proc/self", name).write_text(text)
    if sys.argv[1] == "refused":
        pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
    kernel.become(1000)
    try:
        start.check(unsafe=False)
        print("allowed")
    except ValueError as error:
        print(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start.check(unsafe=True)
        print(*(w.message for w in caught))
    judge = code.Judge(unsafe=True, seconds=5.0)  # a start takes over a second on a loaded machine
    for name, (source, written) in json.load(sys.stdin).items():
        print(name, judge(source, {"inputs": [""], "outputs": [written]})["reward"])
    print(judge("def f(x): return [x]", ["assert f(2) == [2]"])["outcome"])
"""


@needs_namespaces
@pytest.mark.full
@pytest.mark.parametrize("kind", ["allowed", "refused"])
def test_without_privileges_and_where_the_kernel_refuses(kind, tmp_path):
    held = ("memory", "a large file", "more rights", "a daemon", "sleep", "files of the machine", "the environment")
    programs = {name: (textwrap.dedent(ATTACKS[name][0]), "held") for name in held}
    script = [sys.executable, "-c", textwrap.dedent(UNPRIVILEGED), kind]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        script, input=json.dumps(programs), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, *verdicts, assertions = done.stdout.splitlines()
    rewards = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in verdicts}
    expected = {name: 1.0 for name in held} | {"sleep": 0.0}
    if kind == "allowed":
        assert first == "allowed" and second == ""
    else:
        assert "unsafe=False: the kernel refuses the sandbox its namespaces" in first and "can use the network" in first
        assert "unsafe=True" in second and "can use the network" in second
        expected["files of the machine"] = 0.0  # the sandbox says so
    assert rewards == expected and assertions == "correct"
    for _ in range(100):  # the last box may still be ending
        if not list(tmp_path.iterdir()):
            break
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
