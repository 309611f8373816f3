"""The data half of a shipped recipe on environments and tasks that are there, with an expert that errs as the actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.tables import Table
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.engine.stages import write_table

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


def write_general_rows(folder: Path) -> Path:
    """A table of 40 conversations without an environment."""
    messages = [Message(role="user", content="Hello."), Message(role="assistant", content="Hello!", train=True)]
    made = [
        SftRow(row_id=f"g{n:02}", trajectory_id=f"general{n:02}", view="sft", view_parameters={}, messages=messages)
        for n in range(40)
    ]
    write_table(folder, [made], SftRow)
    return folder
