"""The system calls that an interpreter in a sandbox may make; all others fail with ``EPERM``.

What is missing is the point: there is no ``execve``, no new process (``clone`` makes threads only), no signal to
anything, no ``ptrace``, no socket but a pair of unnamed ones, no namespace, no mount, no kernel keyring, no shared
memory outside the address space that is counted, and no locks of files: sandboxes share the read-only ones, and could
tell each other something by locking them.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.extras import install_command
from agentmill.synthesis.sandbox.limits import SandboxUnavailable

UNKNOWN = -1
"""To a libseccomp that is older than the call, which is then refused."""
CLONE3 = 435
THREAD_FLAGS = 0x3D0F00
CLONE_DETACHED = 0x400000
ALL_BITS = 2**64 - 1
"""``THREAD_FLAGS`` are those with which C libraries make threads, musl with ``CLONE_DETACHED``. With others a
thread would get a table of descriptors of its own, which no limit counts with the rest, or one of a process."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)

_MEMORY = "mmap munmap mprotect mremap madvise brk"
_DATA = (
    "read write readv writev pread64 pwrite64 preadv pwritev lseek sendfile copy_file_range recvfrom "
    "close close_range dup dup2 dup3 pipe pipe2 poll ppoll select pselect6 eventfd2 "
    "epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2"
)
_LOOKING = (
    "stat lstat fstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents64 getcwd chdir fchdir "
    "statfs fstatfs umask fsync fdatasync"
)
_CHANGING = (
    "open openat creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat "
    "truncate ftruncate fallocate chmod fchmod fchmodat utimensat utime utimes futimesat"
)
_THREADS = "futex set_robust_list get_robust_list rseq sched_yield sched_getaffinity getcpu exit exit_group"
_SIGNALS = "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigpending rt_sigtimedwait sigaltstack pause"
_SELF = (
    "getpid gettid getppid getpgrp getpgid getsid getuid geteuid getgid getegid getresuid getresgid getgroups "
    "getrlimit getrusage times sysinfo uname restart_syscall"
)
_TIME = "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time getitimer setitimer alarm getrandom"
_SOCKET = "getsockname getpeername shutdown"
_ATTRIBUTES = (
    "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr removexattr "
    "lremovexattr fremovexattr"
)
_FCNTL = (0, 1, 2, 3, 4, 1030)
"""Duplicates and flags. Not: locks, leases, who is to be signalled."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""Is it a terminal, of what size, how much is to be read, blocking or not, closed on execution or not."""

_SOL_SOCKET = 1
_READ_OPTIONS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 15, 18, 20, 21, 30, 38, 39)
"""Type, family, protocol, error, buffer sizes, time limits and flags of a socket itself. Not: what tells of its peer,
which is the host (``SO_PEERPIDFD`` opens a descriptor of its process), of its network, or of the kernel's memory."""
_WRITTEN_OPTIONS = (2, 5, 6, 9, 10, 13, 15, 18, 20, 21)
"""Time limits and flags. Not: larger buffers, filters (which are programs for the kernel), credentials, descriptors of
processes, devices, time stamps, busy waiting."""


@functools.cache
def interpreter_filter(writable: bool) -> bytes:
    """The filter as a program for the kernel; if not ``writable``, no file can be changed or opened for writing.

    Raises ``SandboxUnavailable`` where libseccomp is not installed.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxUnavailable(
            f"the sandbox needs libseccomp ({error}); install it with `{install_command('sandbox')}` "
            "and `apt install libseccomp2` (dnf: libseccomp)",
            ErrorCode.EXTRA_MISSING,
        ) from None
    # An error and not a kill: libraries try calls that they can do without.
    made: Any = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    allow, arg, equal, masked = pyseccomp.ALLOW, pyseccomp.Arg, pyseccomp.EQ, pyseccomp.MASKED_EQ
    groups = [_MEMORY, _DATA, _LOOKING, _THREADS, _SIGNALS, _SELF, _TIME, _SOCKET, *([_CHANGING] if writable else [])]
    for name in " ".join(groups).split():
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) != UNKNOWN:
            made.add_rule(allow, name)
    if not writable:
        made.add_rule(allow, "open", arg(1, masked, WRITING, 0))
        made.add_rule(allow, "openat", arg(2, masked, WRITING, 0))
    made.add_rule(allow, "clone", arg(0, masked, ALL_BITS & ~CLONE_DETACHED, THREAD_FLAGS))
    made.add_rule(pyseccomp.ERRNO(errno.ENOSYS), CLONE3)  # its flags are in memory; libc then takes clone
    # Its own limits, and to read them only.
    made.add_rule(allow, "prlimit64", arg(0, equal, 0), arg(2, equal, 0))
    made.add_rule(allow, "socketpair", arg(0, equal, 1))
    # Without an address: only to the peer that a socket has.
    made.add_rule(allow, "sendto", arg(4, equal, 0))
    for call, options in (("getsockopt", _READ_OPTIONS), ("setsockopt", _WRITTEN_OPTIONS)):
        for option in options:
            made.add_rule(allow, call, arg(1, equal, _SOL_SOCKET), arg(2, equal, option))
    for name in _ATTRIBUTES.split():
        # shutil takes this error for a file system without attributes, and would fail at EPERM.
        made.add_rule(pyseccomp.ERRNO(errno.EOPNOTSUPP), name)
    for command in _FCNTL:
        made.add_rule(allow, "fcntl", arg(1, equal, command))
    for request in _IOCTL:
        made.add_rule(allow, "ioctl", arg(1, equal, request))
    return _exported(made)


def _exported(made: Any) -> bytes:
    with os.fdopen(os.memfd_create("filter"), "w+b") as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
