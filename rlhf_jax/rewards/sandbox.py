"""Walls round a program that nobody trusts, from what Linux gives to every user.

`enclose` is called once in a process: from then on it sees no file but the Python installation
(read-only), no network, no other user's processes and no capability outside. `divide` gives one
item its own process ids and its own scratch folder. `restrict` is the last step before foreign
code runs: limits, and a filter of system calls that forbids new processes, programs, sockets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

SCRATCH = "/scratch"
SCRATCH_BYTES = 16 << 20
SCRATCH_FILES = 256
OPEN_FILES = 64

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_THREAD = 0x10000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
CAPABILITY_VERSION_3 = 0x20080522
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_FILTER = 38, 22, 2

_HELP = (
    "code is only run where the kernel lets it be walled in: Linux 5.12 or later with user "
    "namespaces (sysctl user.max_user_namespaces above 0, and on Ubuntu 24.04 "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --privileged, or "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined)"
)

# Processes and programs; network; memory that no limit counts, and what outlives the process; the
# walls themselves; ways round the filter, and parts of the kernel that nobody needs.
FORBIDDEN = (
    *("fork", "vfork", "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev"),
    *("pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kcmp"),
    *("socket", "connect", "bind", "listen", "accept", "accept4", "sendmsg", "sendmmsg"),
    *("memfd_create", "memfd_secret", "shmget", "semget", "msgget", "mq_open", "userfaultfd"),
    *("keyctl", "add_key", "request_key"),
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "mount_setattr"),
    *("move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "fspick"),
    *("name_to_handle_at", "open_by_handle_at", "personality"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open"),
)


class Unavailable(RuntimeError):
    """A wall that this kernel does not give; the message says which and what to do."""


def _libc(name: str, *args: Any) -> int:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    result = function(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise Unavailable(f"{name} failed ({os.strerror(number)}); {_HELP}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    _libc("mount", *encoded, ctypes.c_ulong(flags), data.encode())


def _read_only(target: str) -> None:
    """The mount at `target` and all below it; other flags of a mount must stay as they are."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    _libc(
        "syscall",
        ctypes.c_long(SYS_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )


def visible_paths() -> list[str]:
    """Folders that Python needs: its installation and the system's libraries; none in another."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    wanted |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64"}
    wanted = {os.path.realpath(path) for path in wanted if os.path.isdir(path)}
    return sorted(p for p in wanted if not any(p.startswith(q.rstrip("/") + "/") for q in wanted))


def enclose() -> None:
    """Leave the caller's files, network and capabilities for good.

    Raises:
        Unavailable: the kernel does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    _libc("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
    maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for file, text in maps.items():
        with open(f"/proc/self/{file}", "w") as out:
            out.write(text)
    paths = visible_paths()
    _mount("none", "/", None, MS_REC | MS_PRIVATE)  # nothing reaches the caller's mounts
    root = _covered(paths)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in paths:
        os.makedirs(root + path, exist_ok=True)
        _mount(path, root + path, None, MS_BIND | MS_REC)
        _read_only(root + path)
    for link in ("/lib", "/lib64"):
        if os.path.islink(link) and not os.path.lexists(root + link):
            os.symlink(os.path.realpath(link), root + link)
    os.makedirs(root + SCRATCH, exist_ok=True)
    if not os.path.exists(root + "/tmp"):  # unless Python itself is installed there
        os.symlink(SCRATCH, root + "/tmp")
    os.chroot(root)
    os.chdir("/")
    _mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _covered(paths: Iterable[str]) -> str:
    """A folder to build the new root on: it hides what is there, so nothing that is needed."""
    for root in ("/mnt", "/media", "/srv", "/opt", "/home", "/var/tmp", "/tmp"):
        if os.path.isdir(root) and not any((path + "/").startswith(root + "/") for path in paths):
            return root
    raise Unavailable(f"every folder to build a root on holds a part of Python: {paths}")


def divide() -> None:
    """For this process an empty scratch folder, for its children their own process ids.

    When the first child ends, the kernel kills all others in it, however they hid.
    """
    _libc("unshare", CLONE_NEWPID | CLONE_NEWNS)
    options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_FILES},mode=700"
    _mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(SCRATCH)


def restrict(*, cpu_seconds: int, memory: int, output: int) -> None:
    """Limits, no capabilities, and no forbidden system call, until this process ends.

    Args:
        cpu_seconds: of CPU time; then the kernel kills it.
        memory: bytes of address space.
        output: bytes of a file, standard output included.
    """
    for limit, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, output),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(limit, (value, value))
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _libc("capset", header, (ctypes.c_uint32 * 6)())
    rules = ctypes.create_string_buffer(_rules(), len(_rules()))
    program = _FilterProgram(len(_rules()) // 8, ctypes.addressof(rules))
    zero = ctypes.c_ulong(0)
    _libc("prctl", PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero)
    _libc(
        "prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_FILTER), ctypes.byref(program), zero, zero
    )


class _FilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


@lru_cache(maxsize=1)
def _rules() -> bytes:
    """The filter as the kernel takes it: compiled once, for it takes milliseconds."""
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    for name in FORBIDDEN:
        try:
            pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        except ValueError:
            continue  # unknown on this architecture, so it cannot be called either
        rules.add_rule(refuse, name)
    # a thread is a clone within the process; glibc tries clone3, whose flags cannot be seen
    rules.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, CLONE_THREAD, 0))
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    # a datagram pair of sockets may send to any address
    rules.add_rule(refuse, "sendto", pyseccomp.Arg(4, pyseccomp.NE, 0))
    with os.fdopen(os.memfd_create("rules"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def load() -> None:
    """What must be there before the walls stand.

    Raises:
        Unavailable: this is not Linux, or the library that writes filters is missing.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"this is {sys.platform}; {_HELP}")
    try:
        _rules()
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(
            f"system calls cannot be filtered ({error}): pip install 'rlhf_jax[rewards]', and "
            "libseccomp.so.2 from the system (Debian, Ubuntu: libseccomp2)"
        ) from None
