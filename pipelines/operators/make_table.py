"""Making the table of one step: what it is made by, whether it is there already, and the run of its operation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from agentmill.pipelines.engine import attempts
from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.engine.operation import identity
from agentmill.pipelines.engine.progress import StageProgress
from agentmill.pipelines.engine.provenance import SEEDS, Provenance, finished, provenance
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.engine.stage_run import StageRun
from agentmill.pipelines.engine.workspace import order_of
from agentmill.pipelines.operators.lookup import check_disjoint
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.tables.dropped import used_too_few
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Manifest


def find_table(
    parameters: Operator, inputs: Inputs, context: StepContext, replace: bool = False, min_used: float = 0.0
) -> Manifest | None:
    """The manifest if the table of a step is there already, so that no model need be served.

    With ``replace``, a table is to be made anew that was made differently, or used less than ``min_used`` of its inputs
    or none. Raises ``UserError`` for one that was made differently, otherwise, also in part, and for a table to be made
    of tables that share ids.
    """
    seeds = parameters.seeds(context)
    wanted = _provenance(parameters, inputs, context, seeds)
    manifest = finished(context.folder, wanted, replace)
    if manifest is not None and replace and used_too_few(manifest, min_used):
        # It was made by the same, so the engine would take it for finished.
        attempts.clear(context.folder)
        manifest = None
    if manifest is not None:
        _clean_up(context)
    else:
        if not replace:
            # Seeds are the one table that the rows are made from.
            order = [] if seeds else order_of(inputs.get(parameters.primary, ()))
            attempts.refuse_other_work(context.folder, wanted, order)
        _check_ids(parameters, inputs, context)
    return manifest


def make_table(
    parameters: Operator,
    inputs: Inputs,
    context: StepContext,
    *,
    runner: RunnerConfig = RunnerConfig(),
    replace: bool = False,
    retry_above: float | None = None,
    progress: StageProgress | None = None,
) -> Manifest:
    """Make the table of a step in ``context.folder``, or find that it is made.

    The models of ``context`` are served already. ``replace`` and ``retry_above`` as for ``StageRun``. Raises as
    ``run_stage``.
    """
    _check_ids(parameters, inputs, context)
    seeds = parameters.seeds(context)
    run = StageRun(
        name=context.name,
        operation=parameters.operation(inputs, context),
        primary=[seed_table(context.folder / SEEDS, seeds)] if seeds else inputs.get(parameters.primary, ()),
        provenance=_provenance(parameters, inputs, context, seeds),
        folder=context.folder,
        inputs=[*chain.from_iterable(inputs.values())],
        runner=runner,
        slots=slots(context),
        replace=replace,
        retry_above=retry_above,
    )
    manifest = run_stage(run, progress)
    _clean_up(context)
    return manifest


def served(context: StepContext, endpoints: Mapping[str, Sequence[Endpoint]]) -> StepContext:
    """``context`` with the models of these roles served at these addresses."""
    models = {
        role: msgspec.structs.replace(model, endpoints=list(endpoints.get(role, model.endpoints)))
        for role, model in context.models.items()
    }
    return msgspec.structs.replace(context, models=models)


def slots(context: StepContext) -> dict[str, int]:
    """The sequences that each model server of the run works on at once, by base URL."""
    return {
        endpoint.base_url: model.config.server.sequences
        for model in context.models.values()
        if model.config.managed
        for endpoint in model.endpoints
    }


def _provenance(parameters: Operator, inputs: Inputs, context: StepContext, seeds: Sequence[Record]) -> Provenance:
    config: dict[str, Any] = {**parameters.provenance_config(context), **parameters.tables_config(inputs)}
    # These rows are an input as well, and no table in ``inputs`` has their digest.
    if seeds:
        config = {**config, "seeds": digest([identity(seed) for seed in seeds])}
    return provenance(context.operator, config, inputs)


def _check_ids(parameters: Operator, inputs: Inputs, context: StepContext) -> None:
    """Trajectories and the primary rows must differ in their ids; side records with equal ids count as one."""
    for role, tables in inputs.items():
        if len({table.folder.resolve() for table in tables}) < len(tables) and role == parameters.primary:
            raise UserError(f"step {context.name}: a table is given twice in {role}", ErrorCode.GIVEN_TWICE)
        if role == parameters.primary or tables[0].manifest.record == Trajectory.__name__:
            check_disjoint(tables)


def _clean_up(context: StepContext) -> None:
    """Remove what only an unfinished table needs; a kill may have come between the manifest and this."""
    attempts.end(context.folder)
    shutil.rmtree(context.folder / SEEDS, ignore_errors=True)
