"""The data half of a shipped recipe on environments and tasks that are there, with an expert that errs as the actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmill.schemas.tables import Table
from tests.pipelines.cli.tables import agentmill

STAND_IN = "models.actor={policy: expert, mistakes: 0.4}"


def run(made: Path, folder: Path, name: str, *overrides: str) -> Path:
    """The folder of the data half of a recipe, on the environments and tasks in the folder ``made``."""
    data = f"data={{environments: {made / 'environments'}, tasks: {made / 'tasks'}, general_rows: data/general_rows}}"
    given = [STAND_IN, "include=[]", data, f"run_dir={folder / 'run'}", *overrides]
    assert agentmill("run", name, "--only", "data", *given) == 0
    return folder / "run"


def rows(table: Path) -> list[Any]:
    """The rows of a table."""
    return list(Table.open(table).rows())
