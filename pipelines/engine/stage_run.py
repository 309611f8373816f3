"""One table to be made: an operation over the rows of some tables, into a folder, on a Beam runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.engine.provenance import Provenance
from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.schemas.tables import Table


class StageRun(msgspec.Struct, frozen=True, kw_only=True):
    """``operation`` over the rows of ``primary``, into ``folder``.

    Attributes:
        name: what messages call it.
        provenance: what the table is made by; a table that is there with an equal one is not made again.
        inputs: all tables that the operation reads, which must be the same when it ends.
        slots: the sequences that each model server of the run works on at once, by base URL.
        replace: whether a table that was made differently is removed first.
        retry_above: the share of inputs dropped for transient reasons above which the stage counts as unfinished;
            ``None``: it is finished in any case.
    """

    name: str
    operation: AnyOperation
    primary: Sequence[Table]
    provenance: Provenance
    folder: Path
    inputs: Sequence[Table] = ()
    runner: RunnerConfig = RunnerConfig()
    slots: Mapping[str, int] = {}
    replace: bool = False
    retry_above: float | None = None
