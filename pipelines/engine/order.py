"""The order of a stage: all that running it needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipelines.engine.operation import Operation
from pipelines.engine.provenance import Provenance
from pipelines.engine.runner import RunnerConfig
from schemas.tables import Table


class StageOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: ``operation`` over the rows of ``primary``, into ``folder``, where to run it, and what it
    goes by. ``replace``: a table that was made differently gives way.
    """

    name: str
    operation: Operation
    primary: Sequence[Table]
    provenance: Provenance
    folder: Path
    runner: RunnerConfig
    replace: bool = False
