"""Data of interpreter worlds: the source of their tables and the wordings of tasks compile and are clean."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.generators.interpreter_procedural.generator import propose, themes
from agentmill.synthesis.generators.interpreter_tasks.generator import InterpreterTaskGenerator
from agentmill.synthesis.generators.interpreter_tasks.steps import wordings
from tests.synthesis.generators.environments import inspiration


async def _tasks(spec: EnvironmentSpec) -> list[Task]:
    return [task async for task in InterpreterTaskGenerator((2, 6)).propose(spec, 6, 0) if isinstance(task, Task)]


@cache
def worlds() -> tuple[EnvironmentSpec, ...]:
    return tuple(propose(inspiration(), seed) for seed in range(30))


@cache
def tasks() -> tuple[Task, ...]:
    return tuple(task for spec in worlds() for task in asyncio.run(_tasks(spec)))


def programs() -> dict[str, str]:
    """Sources by the number of the world, and the cells of gold solutions one after the other."""
    made = {f"source{number}": spec.source for number, spec in enumerate(worlds())}
    for number, task in enumerate(tasks()):
        cells = [str(action.kwargs["code"]) for action in task.gold or [] if isinstance(action, ApiAction)]
        made[f"gold{number}"] = "\n".join(cells) + "\n"
    return made


def test_every_theme_and_wording_is_used() -> None:
    assert {str(spec.name).partition("-")[0] for spec in worlds()} == {theme.name for theme in themes()}
    skills = {skill for task in tasks() for skill in task.skills}
    names = {*wordings().steps, *wordings().questions}
    assert {name.replace("_", "") for name in names} == skills
    assert {task.instruction.partition(" ")[0] for task in tasks()} == {"Look", "Define"}


def test_no_placeholder_is_left() -> None:
    texts = [text for spec in worlds() for text in (spec.source, str(spec.parameters["rules"]))]
    texts += [task.instruction for task in tasks()]
    assert re.findall(r"\b[A-Z]{2,}\b", "\n".join([*texts, *programs().values()])) == []


def test_every_program_compiles_and_is_clean_under_ruff(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for name, program in programs().items():
        compile(program, name, "exec")
        (tmp_path / f"{name}.py").write_text(program)
    rules = ["--isolated", "--select", "E4,E7,E9,F,PLE", "--config", 'builtins=["_tables", "page", "submit"]']
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", *rules, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
