"""The faults that a run has to survive, each with the exit codes that are right after it.

A fault of which a step has no process, such as a worker where the runner is embedded, is not tried there.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from agentmill.pipelines.chaos.command import Command, kill
from agentmill.pipelines.chaos.device import Device
from agentmill.pipelines.processes.identity import pid_of
from agentmill.pipelines.serving.server_process import ServerRecords
from agentmill.schemas.records.manifest import MANIFEST_NAME

FAILED, MISTAKE, INTERRUPTED, TERMINATED, KILLED = 1, 2, 130, 143, -int(signal.SIGKILL)
# Once the outcome is decided and Python exits, the signal itself ends the process. A shell shows both as 130.
INTERRUPTS = frozenset({INTERRUPTED, -int(signal.SIGINT)})


class Scene(msgspec.Struct, frozen=True):
    """Where a fault is injected: a command in the middle of a step, whose table or model is in ``folder``."""

    command: Command
    run_dir: Path
    folder: Path
    chance: random.Random
    device: Device | None


Inject = Callable[[Scene], Sequence[int] | None]
"""Brings a fault about. Returns the processes that pause until the next run of the command has ended, or ``None``
where the fault does not apply to the step; then nothing was done."""


class Fault(msgspec.Struct, frozen=True):
    """A kind of fault. Besides 0, for what was overcome or came too late, ``exits`` are the right exit codes."""

    message: str
    exits: frozenset[int]
    inject: Inject
    needs_device: bool = False


def signals_launcher(number: signal.Signals) -> Inject:
    """A signal to the process that the user started."""

    def inject(scene: Scene) -> Sequence[int]:
        kill(scene.command.pid, number)
        return ()

    return inject


def signals_group(number: signal.Signals) -> Inject:
    """A signal to all processes of its group at once, as a terminal or a scheduler sends it."""

    def inject(scene: Scene) -> Sequence[int]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(scene.command.pid, number)
        return ()

    return inject


def kill_worker(scene: Scene) -> Sequence[int] | None:
    """SIGKILL to one worker process, as for want of memory."""
    return kill_one(scene, scene.command.workers())


def kills_server(ready: bool) -> Inject:
    """SIGKILL to one process of a model server that is ready, or of one that starts."""

    def inject(scene: Scene) -> Sequence[int] | None:
        records = [record for record in ServerRecords(scene.run_dir).read() if record.ready is ready]
        return kill_one(scene, [pid_of(member) for record in records for member in record.members])

    return inject


def kill_one(scene: Scene, processes: Sequence[int]) -> Sequence[int] | None:
    """SIGKILL to one of ``processes``, of which there may be none."""
    if not processes:
        return None
    kill(scene.chance.choice(processes), signal.SIGKILL)
    return ()


def pause(scene: Scene) -> Sequence[int]:
    """All processes pause for a while, as when a laptop sleeps."""
    paused = stop_all(scene.command.processes())
    time.sleep(scene.chance.uniform(0.5, 2.0))
    wake(paused)
    return ()


def wake_workers(scene: Scene) -> Sequence[int] | None:
    """Workers pause while their launcher is killed, and wake when the next run of the command has ended."""
    workers = scene.command.workers()
    if not workers:
        return None
    stop_all(workers)
    kill(scene.command.pid, signal.SIGKILL)
    return workers


def corrupt(scene: Scene) -> Sequence[int] | None:
    """A bit of the newest file of an unfinished table flips, and all processes are killed."""
    # Stopped first, so that the table is not finished between the look and the flip.
    paused = stop_all(scene.command.processes())
    files = [path for path in scene.folder.rglob("*.parquet") if path.stat().st_size]
    if not files or (scene.folder / MANIFEST_NAME).exists():
        wake(paused)
        return None
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[scene.chance.randrange(len(data))] ^= 1 << scene.chance.randrange(8)
    newest.write_bytes(data)
    for pid in paused:
        kill(pid, signal.SIGKILL)
    return ()


def fill_device(scene: Scene) -> Sequence[int] | None:
    """No space is left on the device of the run, until the command has ended or for a while."""
    if scene.device is None:
        return None
    with scene.device.filled():
        scene.command.wait(10.0)
    return ()


def cut_network(scene: Scene) -> Sequence[int] | None:
    """No packet passes for a while, not even between the processes of the run."""
    if scene.device is None:
        return None
    with scene.device.cut():
        scene.command.wait(scene.chance.uniform(0.5, 3.0))
    return ()


def stop_all(processes: Sequence[int]) -> Sequence[int]:
    """Pause processes."""
    for pid in processes:
        kill(pid, signal.SIGSTOP)
    return processes


def wake(processes: Sequence[int]) -> None:
    """Let paused processes go on."""
    for pid in processes:
        kill(pid, signal.SIGCONT)


FAULTS: Mapping[str, Fault] = {
    "kill_launcher": Fault("SIGKILL to the launcher", frozenset({KILLED}), signals_launcher(signal.SIGKILL)),
    "kill_group": Fault("SIGKILL to the process group", frozenset({KILLED}), signals_group(signal.SIGKILL)),
    "kill_worker": Fault("SIGKILL to a worker", frozenset(), kill_worker),
    "kill_server": Fault("SIGKILL to a process of a model server that is ready", frozenset(), kills_server(True)),
    "kill_starting_server": Fault("SIGKILL to one of a server that starts", frozenset({FAILED}), kills_server(False)),
    "terminate": Fault("SIGTERM to the launcher", frozenset({TERMINATED}), signals_launcher(signal.SIGTERM)),
    "terminate_group": Fault("SIGTERM to the process group", frozenset({TERMINATED}), signals_group(signal.SIGTERM)),
    "interrupt": Fault("SIGINT to the process group", INTERRUPTS, signals_group(signal.SIGINT)),
    "pause": Fault("all processes are stopped for up to 2 s", frozenset(), pause),
    "wake_workers": Fault("workers of a killed launcher wake after the next run", frozenset({KILLED}), wake_workers),
    "corrupt": Fault("a bit of the newest file flips, all are killed", frozenset({KILLED}), corrupt),
    "fill_device": Fault("no space is left on the device", frozenset({MISTAKE}), fill_device, needs_device=True),
    "cut_network": Fault("no packet passes for up to 3 s", frozenset({FAILED}), cut_network, needs_device=True),
}
"""All kinds of faults, by name."""
