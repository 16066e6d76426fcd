"""Namespaces, mounts, capabilities and limits, through ctypes. Linux only."""

import contextlib
import ctypes
import os
import resource
import sysconfig
from collections.abc import Callable, Mapping
from typing import Any

INSIDE = 1000  # the user of programs, inside the user namespace
_OUTSIDE = 1_879_048_192  # 0x70000000: the first of the users that they are outside, if root starts the sandbox

# <linux/sched.h>, <sys/mount.h>, <linux/prctl.h>
_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    *(0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000),
)
_RDONLY, _NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
_DETACH = 2
_PARENT_DEATH, _DROP_BOUNDING, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 24, 36, 38
_MOUNT_SETATTR = 442  # the system call has this number on all architectures
_AT_RECURSIVE = 0x8000
_CAPABILITY_3 = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
PACKAGES = "/packages"  # where installed packages are, for boxes that need some
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = ("/usr/lib/python3", *(f"{path}/{name}-packages" for path in _STANDARD for name in ("site", "dist")))


def _call(name: str, *args: Any) -> None:
    """Call a function of the C library; OSError if it returns -1."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(f"{name}: the C library does not have it")
    if function(*(arg.encode() if isinstance(arg, str) else arg for arg in args)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def identities(pid: int) -> list[dict[str, str]]:
    """Return what may be written to /proc/PID of a process in a new user namespace, by preference."""
    single = {"setgroups": "deny", "uid_map": f"{INSIDE} {os.geteuid()} 1", "gid_map": f"{INSIDE} {os.getegid()} 1"}
    if os.geteuid() != 0:
        return [single]
    several = f"0 0 1\n{INSIDE} {outside(pid)} 1"  # a user for each sandbox, whose processes the kernel counts
    return [{"uid_map": several, "gid_map": several}, single]


def outside(pid: int) -> int:
    """Return the user that the programs of a sandbox are outside, if root starts it."""
    return _OUTSIDE + pid


def enter(mapped: Callable[[], None], packages: Mapping[str, str]) -> None:
    """Enter namespaces without network, whose file system holds nothing but read-only libraries.

    Args:
      mapped: returns once ``identities`` has been written by another process.
      packages: files and folders by their names in ``PACKAGES``.

    Raises:
      OSError: the kernel refuses.
    """
    _call("unshare", _NEWUSER | _NEWNS | _NEWNET | _NEWIPC | _NEWUTS | _NEWCGROUP)
    mapped()
    _call("mount", "none", "/", None, _REC | _PRIVATE, None)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # in this one: no program becomes root in another
    sources = {path: path for path in (*_LIBRARIES, *_STANDARD, *_DEVICES)}
    sources |= {f"{PACKAGES}/{name}": path for name, path in packages.items()}
    handles = {path: os.open(source, os.O_PATH) for path, source in sources.items() if os.path.exists(source)}
    masked = dict.fromkeys(path for path in _PACKAGES if os.path.isdir(path))
    files = [path for path in handles if not os.path.isdir(sources[path])]
    links = {path: os.readlink(path) for path in handles if os.path.islink(path)}
    _call("mount", "tmpfs", "/tmp", "tmpfs", _NOSUID, "size=1m,mode=755")
    for path, handle in handles.items():
        target = f"/tmp{path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path in links:
            os.symlink(links[path], target)
            continue
        if path in files:
            os.close(os.open(target, os.O_CREAT))
        elif not os.path.isdir(target):
            os.makedirs(target)
        _call("mount", f"/proc/self/fd/{handle}", target, None, _BIND | _REC, None)
    for path in masked:
        if os.path.isdir(f"/tmp{path}"):
            _call("mount", "tmpfs", f"/tmp{path}", "tmpfs", _NOSUID | _RDONLY, "size=4k")
    os.mkdir("/tmp/tmp")
    os.chdir("/tmp")
    _call("pivot_root", ".", ".")
    _call("umount2", ".", _DETACH)
    os.chdir("/")
    attributes = (ctypes.c_uint64 * 4)(_RDONLY | _NOSUID)
    _call("syscall", _MOUNT_SETATTR, -1, "/", _AT_RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes))


def enter_box() -> None:
    """Give the children of this process a process namespace, and it and them an empty folder /tmp."""
    _call("unshare", _NEWPID | _NEWNS | _NEWIPC)


def folder(size: int) -> None:
    """Mount an empty folder of at most ``size`` bytes at /tmp, and make it the current one."""
    options = f"size={size},nr_inodes=1000,mode=700,uid={INSIDE},gid={INSIDE}"
    _call("mount", "tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, options)
    os.chdir("/tmp")


def become(user: int) -> None:
    """Become a user, if root or a user that ``identities`` maps, and give up all capabilities for good."""
    if os.geteuid() != user:
        os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    with contextlib.suppress(OSError):  # the last one, or without the right to give any up
        for number in range(64):
            _call("prctl", _DROP_BOUNDING, number, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(none))


def restrain() -> None:
    """End with the parent; gain no privileges by starting programs."""
    _call("prctl", _PARENT_DEATH, 9, 0, 0, 0)
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def adopt() -> None:
    """Become the parent of all descendants whose parent ends."""
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)


def limit(**limits: int) -> None:
    """Set resource limits, such as ``cpu=2``, that can no longer be raised; those that the system lacks are left."""
    for name, value in limits.items():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            kind = getattr(resource, f"RLIMIT_{name.upper()}")
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
