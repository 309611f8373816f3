"""The order of a stage: all that running it needs to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pipelines.engine.operation import Operation
from pipelines.engine.provenance import Provenance
from pipelines.engine.runner import RunnerConfig
from schemas.tables import Table


class StageOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: ``operation`` over the rows of ``primary``, into ``folder``, where to run it, and what it
    goes by. ``slots`` are the sequences that each server of ours works on at once, by base URL. ``replace``: a table
    that was made differently gives way. ``retry_above``: the share of inputs dropped for what may pass above which the
    stage counts as unfinished; ``None``: it is finished in any case.
    """

    name: str
    operation: Operation
    primary: Sequence[Table]
    provenance: Provenance
    folder: Path
    runner: RunnerConfig
    slots: Mapping[str, int] = {}
    replace: bool = False
    retry_above: float | None = None
