"""One run of a recipe with a fault in each of its steps: the same command is started until it ends by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from agentmill.pipelines.chaos.command import TRACEBACK, Command
from agentmill.pipelines.chaos.device import Device
from agentmill.pipelines.chaos.faults import FAULTS, Scene, wake
from agentmill.pipelines.operators.task_step import TaskStep
from agentmill.pipelines.processes.identity import words_of
from agentmill.pipelines.recipes.step import Step

GRACE_S = 60.0
"""Workers of a launcher that was killed end within this time."""

_POLL_S = 0.02
TASK_STEP_S = 4.0
"""A training, which may say nothing at its start, has begun after so long."""


class Tried(msgspec.Struct, kw_only=True):
    """A fault that was injected into a step: how the command ended, and what went wrong, empty for nothing."""

    run: int
    fault: str
    step: str
    operator: str
    exit: int | None = None
    wrong: list[str] = []


class Broken(Exception):
    """A run cannot be finished; the message says why."""


class FaultRun:
    """A run into ``folder``; ``start`` starts its command, which may take ``limit_s`` at a time.

    ``report`` is called with each fault when its command has ended.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        device: Device | None,
        start: Callable[[], Command],
        report: Callable[[Tried], None],
        limit_s: float,
    ) -> None:
        self.tried: list[Tried] = []
        self.done = False
        """Whether the command has ended by itself, with nothing left to do."""
        self._number = number
        self._folder = folder if device is None else device.outside
        self._device = device
        self._start = start
        self._report = report
        self._limit_s = limit_s
        self._paused: Sequence[int] = ()
        self._command: Command | None = None
        """The command that runs and outlives the faults that have come to it."""
        self._open: list[Tried] = []
        """These faults."""

    @property
    def begun(self) -> int:
        """How many faults have been injected, those of a command that still runs included."""
        return len(self.tried) + len(self._open)

    def inject(self, step: Step, seconds: float, kinds: list[str], chance: random.Random) -> None:
        """Start the command and inject the first of ``kinds`` that applies to ``step``, in the middle of it.

        That kind goes to the end of the list. A command that outlives its fault gets the next one, too. Nothing is
        tried where the command ends too soon. ``seconds`` is how long the step takes in the baseline run. Raises
        ``Broken`` if the run does not get there.
        """
        command = self._command or self._start()
        self._command = None
        began = self._begins(command, step)
        if began:
            command.wait(chance.uniform(0.0, seconds))
        scene = Scene(
            command=command,
            run_dir=self._folder,
            folder=self._folder / step.name,
            chance=chance,
            device=self._device,
        )
        # A copy, since the kind that applies moves to the end of the list.
        for kind in [*kinds] if began and command.runs() else ():
            paused = FAULTS[kind].inject(scene)
            if paused is not None:
                kinds.append(kinds.pop(kinds.index(kind)))
                self._open.append(Tried(run=self._number, fault=kind, step=step.name, operator=step.context.operator))
                if FAULTS[kind].exits:
                    self._judge(command, paused)
                else:  # the command goes on, and the next fault may come to it
                    self._command = command
                return
        self._judge(command, ())

    def finish(self) -> None:
        """Run the command to its end. Raises ``Broken`` if it does not end as it should."""
        command, self._command = self._command or self._start(), None
        self._judge(command, ())
        if not self.done:
            self._judge(self._start(), ())

    def _judge(self, command: Command, paused: Sequence[int]) -> None:
        """Wait for the end of a command and report the faults that came to it; ``paused`` processes wait.

        Raises ``Broken`` where no fault explains its end.
        """
        code = command.wait(self._limit_s)
        exits = frozenset[int]().union(*(FAULTS[each.fault].exits for each in self._open))
        wrong = self._mistakes(command, exits, paused)
        if wrong and not self._open:
            raise Broken("; ".join(wrong))
        for each in self._open:
            each.exit, each.wrong = code, wrong
            self.tried.append(each)
            self._report(each)
        self._open = []
        self.done = code == 0

    def _begins(self, command: Command, step: Step) -> bool:
        """Wait for ``step`` to begin; whether it did before the command ended."""
        until = time.monotonic() + self._limit_s
        ready = None
        while command.runs() and time.monotonic() < until:
            if command.printed(f"{step.name}: started"):
                return True
            if isinstance(step.parameters, TaskStep) and (self._folder / step.name).parent.exists():
                ready = ready or time.monotonic()
                if command.printed(step.name) or time.monotonic() - ready > TASK_STEP_S:
                    return True
            time.sleep(_POLL_S)
        return False

    def _mistakes(self, command: Command, exits: frozenset[int], paused: Sequence[int]) -> list[str]:
        """What is wrong with the end of a command: besides 0, ``exits`` are right. Kills what is left of it.

        The processes that have stood still since the command before are woken, and have to end, too.
        """
        wrong = []
        code = command.wait(0.0)
        if code is None:
            wrong.append(f"the command did not end within {self._limit_s:.0f} s")
        elif code not in {0, *exits}:
            right = " or ".join(map(str, sorted({0, *exits})))
            wrong.append(f"exit code {code}, expected {right}")
        if TRACEBACK in command.output():
            wrong.append("a traceback was printed")
        wake(self._paused)
        left = command.left(GRACE_S, apart_from=paused)
        if left:
            wrong.append(f"{len(left)} processes were left after {GRACE_S:.0f} s: {words_of(left[0]):.120}")
        command.end(apart_from=paused)
        self._paused = paused
        return [f"{each}, see {command.log}" for each in wrong]
