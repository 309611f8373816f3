"""A small device and a network of a run's own, without privileges: user namespaces (unshare(1), nsenter(1))."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

TOOLS = ("unshare", "nsenter", "mount", "ip")
# A new network has its loopback down. The shell becomes ``sleep``, so killing that one process frees both namespaces.
_HOLD = 'ip link set lo up && mount -t tmpfs -o size="$2"m none "$1" && echo ready && exec sleep infinity'
_BLOCK = bytes(2**20)


class Device:
    """A tmpfs of ``size_mb`` at ``folder`` and a loopback network, which only commands that go ``inside`` see.

    A context manager. Raises ``UserError`` on entering where the kernel or the tools of the machine do not allow it.
    """

    def __init__(self, folder: Path, size_mb: int) -> None:
        self._folder = folder
        self._size_mb = size_mb

    def __enter__(self) -> Self:
        missing = [name for name in TOOLS if shutil.which(name) is None]
        if missing:
            raise refused(f"{', '.join(missing)} not found")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._holder = subprocess.Popen(
            ["unshare", "-Urmn", "sh", "-c", _HOLD, "sh", str(self._folder), str(self._size_mb)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise refused(" ".join(self._holder.communicate()[1].split()) or "unshare failed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def inside(self) -> list[str]:
        """What is put before a command line so that it runs with this device and network."""
        return [
            "nsenter",
            "-t",
            str(self._holder.pid),
            "-U",
            "-m",
            "-n",
            "--preserve-credentials",
            f"--wd={Path.cwd()}",
            "--",
        ]

    @property
    def outside(self) -> Path:
        """The folder as those outside see it."""
        return Path(f"/proc/{self._holder.pid}/root{self._folder.absolute()}")

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """No space is left meanwhile."""
        filler = self.outside / ".filler"
        try:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
                while stream.write(_BLOCK):
                    pass
            yield
        finally:
            filler.unlink(missing_ok=True)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """No packet passes meanwhile."""
        self._link("down")
        try:
            yield
        finally:
            self._link("up")

    def _link(self, state: str) -> None:
        subprocess.run([*self.inside, "ip", "link", "set", "lo", state], check=True)


def refused(why: str) -> UserError:
    """The error where a device and a network of one's own cannot be had."""
    return UserError(
        f"a device and a network of the run's own cannot be had: {why:.200}\n"
        "leave out fill_device and cut_network (--fault names the others), or run where user namespaces are allowed",
        ErrorCode.DEVICE_UNAVAILABLE,
    )
