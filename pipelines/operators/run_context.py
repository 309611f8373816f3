"""What the steps of one run share: the model servers, the Beam runner and the display of progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from agentmill.pipelines.engine.progress import StageProgress
from agentmill.pipelines.engine.provenance import Verified
from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.make_table import find_table, make_table, served
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.servers import ModelPool
from agentmill.pipelines.tables.dropped import refuse_unused
from agentmill.schemas.errors import printable
from agentmill.schemas.tables import Manifest, Table


class RunContext:
    """The servers of a run, and where its tables are made. A context manager: leaving it stops the servers.

    ``name`` is that of the recipe. ``made`` counts what was not there before; ``changes`` is called before the first of
    these is made. ``replace`` and ``retry_above`` as for ``StageRun``.
    """

    def __init__(
        self,
        name: str,
        run_dir: Path,
        runner: RunnerConfig,
        progress: StageProgress,
        replace: bool,
        changes: Callable[[], None],
        retry_above: float | None = None,
    ) -> None:
        self.name = name
        self.run_dir = run_dir
        self.replace = replace
        self.progress = progress
        self.pool = ModelPool(run_dir, self.print_line, runner.workers)
        self.made = 0
        self._verified = Verified()
        self._runner = runner
        self._changes = changes
        self._retry_above = retry_above

    def make(
        self,
        parameters: Operator,
        inputs: Inputs,
        models: Mapping[str, ModelConfig],
        context: StepContext,
        min_used: float = 0.0,
    ) -> Manifest:
        """Make the table of a step, or find it made. Models are served only if it has to be made.

        With ``replace``, one that used less than ``min_used`` of its inputs is made anew.

        Raises ``UserError``, ``StageFailed``, ``EngineError``, ``ServerError``, and ``NothingUsed`` for a table that
        dropped all its inputs, whenever it was made.
        """
        context = self.with_models(context, models)
        found = find_table(parameters, inputs, context, self.replace, min_used)
        if found is None:
            # Only where the table has to be made, since it reads every file of the inputs.
            self.verify(inputs)
            self.begin()
            self._warn_of_withheld(parameters, models, context.name)
            manifest = make_table(
                parameters,
                inputs,
                served(context, self.pool.endpoints(models)),
                runner=self._runner,
                replace=self.replace,
                retry_above=self._retry_above,
                progress=self.progress,
            )
        else:
            manifest = found
        refuse_unused(context.name, Table(context.folder, manifest), in_round=context.round > 0)
        if found is not None:
            self.progress.skipped(context.name, found)
        return manifest

    def with_models(self, context: StepContext, models: Mapping[str, ModelConfig]) -> StepContext:
        """``context`` with its models by role, not served yet."""
        known = self.pool.known(models)
        named = {role: msgspec.structs.replace(model, step=context.name) for role, model in known.items()}
        return msgspec.structs.replace(context, models=named)

    def _warn_of_withheld(self, parameters: Operator, models: Mapping[str, ModelConfig], step: str) -> None:
        """Tell the user which sampling parameters of the step a model does not take, and what has no effect on it."""
        for role, config in models.items():
            if config.unused_of_server:
                unused = ", ".join(config.unused_of_server)
                self.print_line(f"{step}: {unused} of {config.entry}: no effect, since the model is behind `endpoints`")
            for name in config.sampling.withheld(parameters.sampling(role)):
                model = config.entry or config.display_name
                self.print_line(f"{step}: `{name}` is not sent to {model}, whose `sampling.{name}` is null")

    def verify(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for a table whose files differ from those that its manifest lists."""
        for tables in inputs.values():
            for table in tables:
                self._verified.check(table)

    def begin(self) -> None:
        """Something is about to be made that was not there before."""
        if not self.made:
            self._changes()
        self.made += 1

    def print_line(self, line: str) -> None:
        """Tell the user what is going on."""
        print(printable(line), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.stop()
