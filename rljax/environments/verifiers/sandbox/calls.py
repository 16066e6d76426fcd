"""A filter of system calls (seccomp): what no program of a test needs and what has had holes fails as if not permitted.

It is known for 64-bit x86 and ARM; elsewhere there is none.
"""

import ctypes
import os
import pathlib
import struct
import tomllib

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, <linux/audit.h>
_X32 = 0x40000000  # system calls of another convention on x86_64

_REFUSED = tomllib.loads(pathlib.Path(__file__).with_name("calls.toml").read_text())

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # <linux/filter.h>
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # SECCOMP_RET_*: EPERM
_SET_SECCOMP, _FILTER = 22, 2


def program(machine: str) -> bytes:
    """Return the filter for a machine, as instructions of the classic packet filter; b"" if it is not known."""
    if machine not in _ARCHITECTURE:
        return b""
    column = list(_ARCHITECTURE).index(machine)
    refused = sorted({numbers[column] for numbers in _REFUSED.values()})
    steps = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number
        (_AT_LEAST, len(refused) + 1, 0, _X32),
        *((_EQUAL, len(refused) - place, 0, number) for place, number in enumerate(refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def refuse() -> None:
    """Apply the filter to this process and all that it starts, for good, if it is known and the kernel takes it."""
    code = program(os.uname().machine)
    if code:
        buffer = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
        ctypes.CDLL(None).prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0)
