"""Trying faults on a recipe: it is run once as a baseline and then again and again, a fault in each of its steps.

Each run must end as the baseline did: with the same rows and weights, no file more or less, no process left.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import msgspec

from agentmill.pipelines.chaos.command import Command, adopting_orphans
from agentmill.pipelines.chaos.device import Device
from agentmill.pipelines.chaos.digests import differences, digests_of
from agentmill.pipelines.chaos.fault_run import Broken, FaultRun, Tried
from agentmill.pipelines.recipes.plan import Plan
from agentmill.pipelines.recipes.run_folder import SUMMARY
from agentmill.pipelines.recipes.summary import Summary
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import write_atomically


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


RECORD = "experiment.json"
"""The file of an experiment with what it goes by and what it has tried so far."""


class Record(msgspec.Struct, kw_only=True):
    """What an experiment goes by, and all that its finished runs have tried; the next begins with ``kinds``."""

    version: str
    arguments: list[str]
    asked: list[str]
    seed: int
    device_mb: int | None
    kinds: list[str]
    runs: int = 0
    tried: list[Tried] = []


def read_record(folder: Path) -> Record | None:
    """The record in ``folder``; ``None`` if there is none. Raises ``UserError`` for one that is damaged."""
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise UserError(f"{folder / RECORD} is damaged ({error}); give a new --out", ErrorCode.DAMAGED_FILE) from error


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
        self._record = self._begun()
        self._commands = len([*settings.folder.glob("command-*.log")])
        self._last: Command | None = None
        self._temporary = settings.folder / "tmp"

    def _begun(self) -> Record:
        """The record of the experiment in the folder, or a new one. Raises ``UserError`` for that of another one."""
        settings = self._settings
        kinds = list(settings.kinds)
        new = Record(
            version=version("agentmill"),
            arguments=self._arguments,
            asked=kinds,
            seed=settings.seed,
            device_mb=settings.device_mb,
            kinds=random.Random(settings.seed).sample(kinds, len(kinds)),
        )
        old = read_record(settings.folder)
        if old is None:
            return new
        fields = ("version", "arguments", "asked", "seed", "device_mb")
        changes = [
            f"{name}: {getattr(old, name)} -> {getattr(new, name)}"
            for name in fields
            if getattr(old, name) != getattr(new, name)
        ]
        if changes:
            raise UserError(
                f"{settings.folder} holds another experiment: {'; '.join(changes)}\ngive a new --out, or delete it",
                ErrorCode.MADE_DIFFERENTLY,
            )
        return old

    def run(self) -> list[Tried]:
        """Try as many faults as are asked for; an experiment that was killed continues after its last finished run.

        Raises ``UserError`` if the recipe fails without faults.
        """
        with adopting_orphans():
            try:
                return self._run()
            finally:
                if self._last is not None:
                    self._last.end()

    def _run(self) -> list[Tried]:
        folder = self._settings.folder
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        baseline = folder / "baseline"
        self._make_baseline(baseline)
        expected = digests_of(baseline)
        # Emptied, so that what the baseline leaves is not attributed to a fault.
        self._left()
        stages = msgspec.json.decode((baseline / SUMMARY).read_bytes(), type=Summary).stages
        seconds = {name: stage.seconds or 0.0 for name, stage in stages.items()}
        record = self._record
        idle = 0
        while len(record.tried) < self._settings.faults:
            number = record.runs + 1
            found = self._fault_run(number, self._settings.faults - len(record.tried), expected, seconds)
            idle = 0 if found else idle + 1
            if idle == IDLE_RUNS:
                raise UserError(
                    f"no fault of {', '.join(self._settings.kinds)} could come to a step in {IDLE_RUNS} runs\n"
                    "the steps may be too short, or have no such process: try other kinds, or more inputs",
                    ErrorCode.NO_FAULT_POSSIBLE,
                )
            record.tried += found
            record.runs = number
            write_atomically(folder / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1), folder)
        return record.tried

    def _make_baseline(self, folder: Path) -> None:
        """Run the recipe without faults; what an earlier experiment has finished is not made again."""
        command = self._start(folder, None)
        code = command.wait(self._settings.limit_s)
        command.end()
        if code != 0:
            raise UserError(
                f"the recipe fails without faults: exit code {code}, see {command.log}\n"
                "faults are tried on a recipe that ends with exit code 0",
                ErrorCode.BASELINE_FAILED,
            )

    def _fault_run(
        self, number: int, most: int, expected: Mapping[str, str], seconds: Mapping[str, float]
    ) -> list[Tried]:
        """One run with a fault in each of its steps, at ``most`` so many, and the comparison at its end.

        Each run begins one step later with them, since what survives a fault in one command goes on to the end.
        """
        folder = self._settings.folder / f"run-{number:04d}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed together with the experiment
        # By the number of the run, so that an experiment that is continued tries what it would have tried at once.
        chance = random.Random(f"{self._settings.seed}/{number}")
        with ExitStack() as stack:
            size = self._settings.device_mb
            device = stack.enter_context(Device(folder, size)) if size is not None else None
            run = FaultRun(
                number, folder, device, lambda: self._start(folder, device), self._report, self._settings.limit_s
            )
            try:
                for step in self._plan.steps[(number - 1) % len(self._plan.steps) :]:
                    if run.begun < most and not run.done:
                        run.inject(step, seconds[step.name], self._record.kinds, chance)
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
            # The device goes with its namespace, and a run that was not survived is kept.
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
        """What is in the folder for temporary files, one line each; it is removed."""
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
