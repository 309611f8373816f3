"""Trying faults on a recipe: it is run once as a baseline and then again and again, a fault in each of its steps.

Each run must end as the baseline did: with the same rows and weights, no file more or less, no process left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from agentmill.pipelines.chaos.command import Command, adopting_orphans
from agentmill.pipelines.chaos.device import Device
from agentmill.pipelines.chaos.digests import differences, digests_of
from agentmill.pipelines.chaos.fault_run import Broken, FaultRun, Tried
from agentmill.pipelines.recipes.plan import Plan
from agentmill.pipelines.recipes.runner import SUMMARY
from agentmill.pipelines.runs.summary import Summary
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How faults are tried: ``faults`` of them, of the ``kinds``, in runs below ``folder``.

    ``limit_s`` is how long the command may take at a time. With ``device_mb`` each run has a device of that size and
    a network of its own.
    """

    folder: Path
    faults: int
    kinds: Sequence[str]
    seed: int
    limit_s: float
    device_mb: int | None


IDLE_RUNS = 3
"""So many runs in a row without a fault that could be tried end the experiment."""


class Experiment:
    """Runs of one recipe under faults. ``arguments`` are those of ``agentmill run``, without a run directory."""

    def __init__(
        self,
        plan: Plan,
        arguments: Sequence[str],
        settings: Settings,
        report: Callable[[Tried], None],
        log: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._arguments = list(arguments)
        self._settings = settings
        self._report = report
        self._log = log
        self._chance = random.Random(settings.seed)
        self._kinds = self._chance.sample(list(settings.kinds), len(settings.kinds))
        self._commands = 0
        self._last: Command | None = None
        self._temporary = settings.folder / "tmp"

    def run(self) -> list[Tried]:
        """Try as many faults as are asked for. Raises ``UserError`` if the recipe fails without faults."""
        with adopting_orphans():
            try:
                return self._run()
            finally:
                if self._last is not None:
                    self._last.end()

    def _run(self) -> list[Tried]:
        folder = self._settings.folder
        folder.mkdir(parents=True, exist_ok=True)
        self._temporary.mkdir()
        baseline = folder / "baseline"
        command = self._start(baseline, None)
        code = command.wait(self._settings.limit_s)
        command.end()
        if code != 0:
            raise UserError(
                f"the recipe fails without faults: exit code {code}, see {command.log}\n"
                "faults are tried on a recipe that ends with exit code 0",
                ErrorCode.BASELINE_FAILED,
            )
        expected = digests_of(baseline)
        self._left()
        stages = msgspec.json.decode((baseline / SUMMARY).read_bytes(), type=Summary).stages
        seconds = {name: stage.seconds or 0.0 for name, stage in stages.items()}
        tried: list[Tried] = []
        idle, number = 0, 0
        while len(tried) < self._settings.faults:
            number += 1
            found = self._fault_run(number, self._settings.faults - len(tried), expected, seconds)
            idle = 0 if found else idle + 1
            if idle == IDLE_RUNS:
                raise UserError(
                    f"no fault of {', '.join(self._settings.kinds)} could come to a step in {IDLE_RUNS} runs\n"
                    "the steps may be too short, or have no such process: try other kinds, or more inputs",
                    ErrorCode.NO_FAULT_POSSIBLE,
                )
            tried += found
        return tried

    def _fault_run(
        self, number: int, most: int, expected: Mapping[str, str], seconds: Mapping[str, float]
    ) -> list[Tried]:
        """One run with a fault in each of its steps, at ``most`` so many, and the comparison at its end.

        Each run begins one step later with them, since what survives a fault in one command goes on to the end.
        """
        folder = self._settings.folder / f"run-{number:04d}"
        with ExitStack() as stack:
            size = self._settings.device_mb
            device = stack.enter_context(Device(folder, size)) if size is not None else None
            run = FaultRun(
                number, folder, device, lambda: self._start(folder, device), self._report, self._settings.limit_s
            )
            try:
                for step in self._plan.steps[(number - 1) % len(self._plan.steps) :]:
                    if run.begun < most and not run.done:
                        run.inject(step, seconds[step.name], self._kinds, self._chance)
                run.finish()
                wrong = differences(expected, digests_of(folder if device is None else device.outside))
                wrong += self._left()
            except (Broken, UserError) as error:
                wrong = [str(error)]
            for each in run.tried:
                each.wrong = [*each.wrong, *wrong]
            if wrong:
                self._log(f"run {number} did not end as the baseline: {'; '.join(wrong[:5])}")
            held = not wrong and not any(each.wrong for each in run.tried)
            if device is not None and not held:
                shutil.copytree(device.outside, folder, dirs_exist_ok=True)
        if held:
            shutil.rmtree(folder, ignore_errors=True)
        elif not run.tried:
            raise UserError(
                f"run {number} failed before a fault was injected: {wrong[0]}\n"
                f"its folder and the output of its commands are kept in {self._settings.folder}",
                ErrorCode.BASELINE_FAILED,
            )
        return run.tried

    def _left(self) -> list[str]:
        """What lies in the folder for temporary files, one line each; it is removed."""
        left = sorted(path.name for path in self._temporary.iterdir())
        shutil.rmtree(self._temporary)
        self._temporary.mkdir()
        return [f"{name} is left in TMPDIR" for name in left]

    def _start(self, run_dir: Path, device: Device | None) -> Command:
        self._commands += 1
        log = self._settings.folder / f"command-{self._commands:05d}.log"
        arguments = ["run", *self._arguments, f"run_dir={run_dir}"]
        self._last = Command(arguments, log, self._temporary, () if device is None else device.inside)
        return self._last
