"""Small operations for tests of the engine: they load in worker processes, and misbehave where a task tells them to."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from agentmill.pipelines.engine.operation import AsyncOperation, Result, RowOperation, UniqueOperation, Unit
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import MessageAction, Outcome, TextObservation, Trajectory
from agentmill.schemas.records.verdict import Dropped, Node
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies.policy import PolicyError

FAULTS: dict[str, Callable[[], BaseException]] = {
    "world": lambda: EnvError("the floor is lava"),
    "policy": lambda: PolicyError("timeout", "no answer in 3 s"),
    "generation": lambda: GenerationError("malformed", "no PDDL", [{"attempt": 1}]),
    "bug": lambda: ZeroDivisionError("division by zero"),
    "user": lambda: UserError("the file is gone\nput it back", ErrorCode.NO_SUCH_FILE),
}

ALIVE = Path(os.environ.get("TEST_ALIVE", "/nowhere"))
"""Unless this file is there, a worker process whose task says ``die`` dies; ``stop`` makes the file, then it stops."""


class Shout(RowOperation):
    """Tasks in capitals; a task whose first skill names a fault raises it, ``skip`` drops it."""

    chunk_rows: ClassVar[int] = 10

    def __init__(self) -> None:
        super().__init__("shout", Task, Task)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        (input_id,) = unit
        fault = record.skills[0] if record.skills else ""
        if fault in FAULTS:
            raise FAULTS[fault]()
        if fault == "die" and not ALIVE.exists():
            os._exit(9)
        if fault == "stop" and not ALIVE.exists():
            ALIVE.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "skip":
            letter = Dropped(input_id=input_id, stage=self.name, reason="skipped", blamed="input")
            return [Result(input_id=input_id, dropped=letter)]
        if fault == "unrepresentable":
            return [Result(input_id=input_id, outputs=[replaced(record, goal={"limit": float("nan")})])]
        if fault == "twice":
            return [Result(input_id=input_id), Result(input_id=input_id)]
        if fault == "silent":
            return []
        return [Result(input_id=input_id, outputs=[replaced(record, instruction=record.instruction.upper())])]

    def measures(self, output: Any) -> Mapping[str, float]:
        return {"letters": len(output.instruction)}


class Slow(Shout):
    """``Shout`` that takes ``seconds`` per task."""

    chunk_rows: ClassVar[int] = 5

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        time.sleep(self.seconds)
        return super().process(record, unit)


class Counted(Shout):
    """``Shout`` that writes how many tasks its chunk has."""

    chunk_rows: ClassVar[int] = 5

    def begin_chunk(self, records: Any) -> None:
        self.rows = len(records)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        return [Result(input_id=unit[0], outputs=[replaced(record, instruction=f"one of {self.rows}")])]


class Distinct(UniqueOperation):
    """Keeps one task of each instruction, whatever its case."""

    chunk_rows: ClassVar[int] = 10

    def __init__(self) -> None:
        super().__init__("distinct", Task, Task)

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        return [Result(input_id=unit[0], outputs=[record])]

    def unique_key(self, output: Any) -> str | None:
        return output.instruction.lower() or None


class Explore(AsyncOperation):
    """``k`` attempts at each task, each after about ``delay_s``; notes the most that were in flight in ``peak``."""

    chunk_rows: ClassVar[int] = 5

    def __init__(self, k: int = 2, delay_s: float = 0.01, window: int = 4, log: Path | None = None) -> None:
        super().__init__("explore", Task, Trajectory, window)
        self.k = k
        self.delay_s = delay_s
        self.log = log
        self.flying = 0

    def count(self, record: Any) -> int:
        return self.k

    def units(self, record: Any) -> list[Unit]:
        return [(digest(record.task_id, attempt),) for attempt in range(self.k)]

    async def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        self.flying += 1
        try:
            self._note(f"{self.flying} {unit[0]}")
            await asyncio.sleep(self.delay_s * (0.5 + int(unit[0][:2], 16) / 256))
            fault = record.skills[0] if record.skills else ""
            if fault in FAULTS:
                raise FAULTS[fault]()
            return [Result(input_id=unit[0], outputs=[lived(record, unit[0])])]
        finally:
            self.flying -= 1

    def measures(self, output: Any) -> Mapping[str, float]:
        return {"success": float(output.outcome.status == "success")}

    def _note(self, line: str) -> None:
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {line}\n")


class Grow(Explore):
    """``Explore`` that leaves two nodes with each attempt, the later one first."""

    sides = ("nodes",)

    async def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        [result] = await super().process(record, unit)
        root = Node(node_id=f"{unit[0]}-0", tree_id=unit[0], parent_id=None, trajectory_id=unit[0], turn=0, visits=2)
        leaf = msgspec.structs.replace(root, node_id=f"{unit[0]}-1", parent_id=root.node_id, turn=1, q=1 / 3)
        return [msgspec.structs.replace(result, sides={"nodes": [leaf, root]})]

    def side_measures(self, output: Any) -> Mapping[str, float]:
        return {"nodes": 1}


def replaced(task: Task, **changes: Any) -> Task:
    """``task`` with other values."""
    changed: Task = msgspec.structs.replace(task, **changes)
    return changed


def lived(task: Task, trajectory_id: str) -> Trajectory:
    """A short trajectory at ``task``."""
    return Trajectory(
        trajectory_id=trajectory_id,
        task_id=task.task_id,
        environment_id=task.environment_id,
        content=[
            TextObservation(content=task.instruction, source="user"),
            MessageAction(content="done", turn=1, reasoning_content="ä\u0000𝄞"),
            TextObservation(content="ok", source="environment", turn=1, reward=0.1 + 0.2),
        ],
        outcome=Outcome(status="success", reward=1 / 3, terminated=True),
        split=task.split,
    )
