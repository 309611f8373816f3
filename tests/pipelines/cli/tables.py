"""A small world on disk and recipes over it, for tests of whole runs that need no model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.cli.main import invoke
from agentmill.pipelines.engine.chunks import seed_table
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.tables import Table
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment

PROGRAM = Path(sys.executable).with_name("agentmill")
MODELS = {"planner": {"policy": "expert"}, "babbler": {"policy": "scripted", "turns": ["dance"] * 40}}
DEMONSTRATE = {
    "operator": "expert",
    "policy": "planner",
    "tasks": "tasks",
    "environments": "environments",
    "split": "train",
    "as": "demonstrations",
}
CHECK = {
    "operator": "check_outcome",
    "of": "demonstrations",
    "tasks": "tasks",
    "environments": "environments",
    "as": "verdicts",
}
EXPORT = {"operator": "sft", "from": "demonstrations", "verdicts": "verdicts", "where": "success", "as": "rows"}
COMPARE = {
    "operator": "evaluate",
    "models": {"base": "babbler", "tuned": "planner"},
    "constrained": ["tuned"],
    "tasks": "tasks",
    "environments": "environments",
    "as": "evaluation",
}


def write_environments(folder: Path, copies: int = 2) -> dict[str, str]:
    """Two environments and ``copies`` equal tasks of each split, as entries for ``data``."""
    examples = PddlEnvironment.examples()
    (_, known), (_, unseen) = examples
    placed = {"train": known, "held_out_tasks": known, "held_out_environments": unseen}
    tasks = [
        msgspec.structs.replace(task, task_id=f"{split}-{number:05d}", split=split)
        for split, task in placed.items()
        for number in range(copies)
    ]
    seed_table(folder / "environments", [spec for spec, _ in examples])
    seed_table(folder / "tasks", tasks)
    return places(folder)


def places(folder: Path) -> dict[str, str]:
    """The tables of the world in ``folder``, as entries for ``data``."""
    return {name: str(folder / name) for name in ("environments", "tasks")}


def write_many(table: Path, folder: Path, n: int) -> Path:
    """A table of ``n`` copies of the first trajectory of ``table``, each with an id of its own, in ``folder``."""
    first = next(iter(Table.open(table).rows()))
    seed_table(folder, [msgspec.structs.replace(first, trajectory_id=f"t{number:06d}") for number in range(n)])
    return folder


def write_recipe(folder: Path, *steps: dict[str, Any], **changes: Any) -> Path:
    """A recipe over the world in ``folder``, which runs into ``folder/run``."""
    defaults = {"name": "small", "run_dir": str(folder / "run"), "models": MODELS, "data": places(folder)}
    path = folder / "recipe.yaml"
    path.write_text(dump_yaml({**defaults, **changes, "steps": list(steps)}), encoding="utf-8")
    return path


def agentmill(*arguments: str | Path) -> int:
    """Run a command in this process, through the boundary that makes exit codes, and return its exit code."""
    return invoke([str(argument) for argument in arguments])


def started(*arguments: str | Path, in_background: bool = False) -> subprocess.Popen[str]:
    """Run a command in a process of its own, in a group of its own; SIGINT is ignored as for ``command &`` of a script
    if ``in_background``.
    """

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.Popen(
        [str(PROGRAM), *map(str, arguments)],
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=ignore if in_background else None,
    )
