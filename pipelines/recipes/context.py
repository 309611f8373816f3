"""Where the steps of a run are worked on: it opens their tables, serves their models and makes their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.engine.stage_run import Job
from agentmill.pipelines.operators.stage import Inputs, Model, Stage, StageContext
from agentmill.pipelines.runs.check import Verified
from agentmill.pipelines.runs.dropped import refuse_unused
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.servers import ModelPool
from agentmill.pipelines.terminal.progress import StageProgress
from agentmill.schemas.errors import printable
from agentmill.schemas.tables import Manifest, Table


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One table to be made: what a step says, with its tables opened and its models resolved."""

    operator: str
    name: str
    stage: Stage
    inputs: Inputs
    models: Mapping[str, ModelConfig]
    folder: Path
    seed: int
    round: int = 0


class RunContext:
    """A run's servers and its way of running stages. A context manager: servers are stopped on leaving it.

    ``made`` counts what was not there before; ``changes`` is called before the first of these is made.
    """

    def __init__(
        self,
        run_dir: Path,
        runner: RunnerConfig,
        progress: StageProgress,
        replace: bool,
        changes: Callable[[], None],
        retry_above: float | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.replace = replace
        self.progress = progress
        self.pool = ModelPool(run_dir, self.say, runner.workers)
        self.made = 0
        self._verified = Verified()
        self._runner = runner
        self._changes = changes
        self._retry_above = retry_above

    def make(self, order: Order) -> Manifest:
        """Make the table of ``order``, or find it made. Models are served only if it has to be made.

        Raises ``UserError``, ``StageFailed``, ``EngineError``, ``ServerError``, and ``NothingUsed`` for a table that
        dropped all its inputs, whenever it was made.
        """
        job = Job(
            operator=order.operator,
            name=order.name,
            stage=order.stage,
            inputs=order.inputs,
            folder=order.folder,
            context=StageContext(seed=order.seed, models=self._models(order), round=order.round),
            runner=self._runner,
            replace=self.replace,
            retry_above=self._retry_above,
        )
        found = job.finished()
        if found is None:
            self.verify(order.inputs)
            self.begin()
            self._say_withheld(order)
            manifest = job.run(self.pool.endpoints(order.models), self.progress)
        else:
            manifest = found
        refuse_unused(order.name, Table(order.folder, manifest), in_round=order.round > 0)
        if found is not None:
            self.progress.skipped(order.name, found)
        return manifest

    def _say_withheld(self, order: Order) -> None:
        """Tell the user which sampling parameters of the step a model does not take."""
        for role, config in order.models.items():
            for name in config.sampling.withheld(order.stage.sampling(role)):
                model = config.entry or config.display_name
                self.say(f"{order.name}: `{name}` is not sent to {model}, whose `sampling.{name}` is null")

    def _models(self, order: Order) -> dict[str, Model]:
        known = self.pool.known(order.models)
        return {role: msgspec.structs.replace(model, step=order.name) for role, model in known.items()}

    def verify(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for a table whose files are not those that its manifest tells of."""
        for tables in inputs.values():
            for table in tables:
                self._verified.check(table)

    def begin(self) -> None:
        """Something is about to be made that was not there before."""
        if not self.made:
            self._changes()
        self.made += 1

    def say(self, line: str) -> None:
        """Tell the user what is going on."""
        print(printable(line), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.stop()
