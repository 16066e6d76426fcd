"""Whether processes have ended."""

import contextlib
import os
import pathlib
import time


def gone(pid):
    """Wait for a process to end, and return whether it has; a zombie, which some containers never reap, has."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def marked(mark):
    """Return the command lines of processes with ``mark`` in their first environment, once no more of them end."""
    for _ in range(40):
        commands = []
        for folder in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdecimal() and folder.name != str(os.getpid()):
                    if mark.encode() in (folder / "environ").read_bytes():
                        commands.append((folder / "cmdline").read_bytes())
        if not commands:
            break
        time.sleep(0.05)
    return commands
