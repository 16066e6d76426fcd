"""A filter of system calls (seccomp): what no program of a test needs and what has had holes fails as if not permitted.

It is known for 64-bit x86 and ARM; elsewhere there is none.
"""

import ctypes
import os
import struct

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, <linux/audit.h>
_X32 = 0x40000000  # system calls of another convention on x86_64

# Numbers on x86_64 and ARM, <asm/unistd.h>; those from 424 on are the same everywhere.
_REFUSED = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),  # memory that the limit of address space does not count
    "memfd_secret": (447, 447),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}

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
