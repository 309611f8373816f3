"""A stage of a recipe, ready to run: parameters, opened tables, models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.engine.operation import identity
from agentmill.pipelines.engine.provenance import SEEDS, Provenance, finished, provenance
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.runner import RunnerConfig, StageOrder
from agentmill.pipelines.operators.lookup import check_disjoint
from agentmill.pipelines.operators.stage import Stage, StageContext
from agentmill.pipelines.runs.dropped import used_nothing
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.terminal.progress import StageProgress
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Manifest, Table


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """``stage`` as operator ``operator`` over ``inputs`` by role, into ``folder``, as table ``name``.

    ``replace``: a table that was made differently gives way. ``retry_above`` as for ``StageOrder``.
    """

    operator: str
    name: str
    stage: Stage
    inputs: Mapping[str, Sequence[Table]]
    folder: Path
    context: StageContext = StageContext()
    runner: RunnerConfig = RunnerConfig()
    replace: bool = False
    retry_above: float | None = None

    def finished(self) -> Manifest | None:
        """The manifest if the table is there already, so that no model need be served.

        With ``replace``, a table that was made differently or of no input is to be made anew. Raises ``UserError`` for
        one that was made differently, otherwise, and for a table that is to be made of tables that share ids.
        """
        manifest = finished(self.folder, self._provenance(self._seeds()), self.replace)
        if manifest is not None and self.replace and used_nothing(manifest):
            attempts.clear(self.folder)
            manifest = None
        if manifest is not None:
            self._tidy()
        else:
            self._check_ids()
        return manifest

    def run(
        self, endpoints: Mapping[str, list[Endpoint]] | None = None, progress: StageProgress | None = None
    ) -> Manifest:
        """Make the table, or find that it is made; ``endpoints`` are those of the models by role.

        Raises as ``run_stage``.
        """
        self._check_ids()
        seeds = self._seeds()
        context = served(self.context, endpoints or {})
        order = StageOrder(
            name=self.name,
            operation=self.stage.operation(self.inputs, context),
            primary=self._primary(seeds),
            provenance=self._provenance(seeds),
            folder=self.folder,
            runner=self.runner,
            slots=slots(context),
            replace=self.replace,
            retry_above=self.retry_above,
        )
        manifest = run_stage(order, progress)
        self._tidy()
        return manifest

    def _tidy(self) -> None:
        """Remove what only a table in the making needs, also after a kill between its manifest and this."""
        attempts.end(self.folder)
        shutil.rmtree(self.folder / SEEDS, ignore_errors=True)

    def _check_ids(self) -> None:
        """Trajectories, and what is worked on, must differ in their ids; equal side records are one."""
        for role, tables in self.inputs.items():
            if len({table.folder.resolve() for table in tables}) < len(tables) and role == self.stage.primary:
                raise UserError(f"stage {self.name}: a table stands twice in {role}", ErrorCode.GIVEN_TWICE)
            if role == self.stage.primary or tables[0].manifest.record == Trajectory.__name__:
                check_disjoint(tables)

    def _seeds(self) -> list[Record]:
        return self.stage.seeds(self.context)

    def _primary(self, seeds: list[Record]) -> Sequence[Table]:
        if seeds:
            return [seed_table(self.folder / SEEDS, seeds)]
        return self.inputs.get(self.stage.primary, ())

    def _provenance(self, seeds: list[Record]) -> Provenance:
        config: dict[str, Any] = self.stage.settled(self.context)
        if seeds:
            config = {**config, "seeds": digest([identity(seed) for seed in seeds])}
        return provenance(self.operator, config, self.inputs)


def slots(context: StageContext) -> dict[str, int]:
    """The sequences that each server of ours works on at once, by base URL."""
    return {
        endpoint.base_url: model.config.server.sequences
        for model in context.models.values()
        if model.config.managed
        for endpoint in model.endpoints
    }


def served(context: StageContext, endpoints: Mapping[str, list[Endpoint]]) -> StageContext:
    """``context`` with the models of these roles served at these addresses."""
    models = {
        role: msgspec.structs.replace(model, endpoints=endpoints.get(role, model.endpoints))
        for role, model in context.models.items()
    }
    return msgspec.structs.replace(context, models=models)
