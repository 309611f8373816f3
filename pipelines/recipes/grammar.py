"""The grammar of a recipe: one YAML file that says which operators run on which tables, and with which models.

    name: demo                        # letters, digits, - and _
    seed: 0                           # every step without a seed of its own derives one from it
    run_dir: runs/demo
    runner: {name: embedded}
    models: {actor: {policy: vllm, model: …}}
    data: {tasks: runs/other/tasks}   # tables made elsewhere
    steps:
      - {operator: sample, policy: actor, tasks: tasks, …, as: explored}
      - {operator: iterate, rounds: 2, steps: […]}

A step names its output with ``as`` (by default: its operator). ``of``, ``from``, ``tasks``, ``environments``,
``verdicts`` and ``rows`` name outputs of earlier steps or entries of ``data``; ``NAME/nodes`` is what the step NAME
writes besides its table. ``ROLE`` and ``ROLE@base`` are a model as declared, ``ROLE@last`` the newest one trained from
it; the output of a training is a model by its own name, too. ``iterate`` repeats its steps; round k writes into
``round-0k/`` and a name means its newest output. ``fork`` runs routes that all start from what is there before it:
``{operator: fork, routes: {long: […], short: […]}}``; route ``long`` writes into ``long/``, and after the fork
``long/NAME`` is its output and ``ROLE@long`` its model. All of it is checked here, before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.operator import Name
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import Config, override, read_yaml, validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

ROUND_NAME = re.compile(r"round-\d+")
"""What the folders of rounds are called."""
ITERATE = "iterate"
OF_A_STEP = ("operator", "as", "min_used")
"""What a step has besides the parameters of its operator."""

FORK = "fork"
Steps = Annotated[list[dict[str, Any]], Field(min_length=1)]


class Recipe(Config):
    """A recipe as written, with ``run_dir`` filled in."""

    name: Name
    run_dir: str
    seed: int = 0
    runner: RunnerConfig = RunnerConfig()
    models: dict[Name, ModelConfig] = {}
    data: dict[Name, str] = {}
    steps: Steps


class Iterate(Config):
    """The control step that repeats ``steps``."""

    operator: Literal["iterate"]
    rounds: Annotated[int, Field(ge=1, le=99)]
    steps: Steps


class Fork(Config):
    """The control step that runs ``routes`` side by side: none knows of what another makes."""

    operator: Literal["fork"]
    routes: Annotated[dict[Name, Steps], Field(min_length=2)]


def read_recipe(path: Path, overrides: Sequence[str]) -> Recipe:
    """Read, override and check the outer part of a recipe; ``agentmill.pipelines.recipes.plan`` resolves its steps."""
    data = read_yaml(path)
    data = override(data, [by_position(each, data) for each in overrides])
    if "run_dir" not in data and isinstance(data.get("name"), str):
        data = {**data, "run_dir": f"runs/{data['name']}"}
    return validate(Recipe, data, str(path))


def by_position(assignment: str, data: dict[str, Any]) -> str:
    """``steps.NAME.key=value`` as ``steps.POSITION.key=value``, where NAME is what a step's output is called."""
    match = re.fullmatch(r"((?:.*\.)?steps)\.((?!\d+[.=])[A-Za-z0-9][^.=]*)([.=].*)", assignment, re.DOTALL)
    steps = data.get("steps")
    if match is None or match[1] != "steps" or not isinstance(steps, list):
        return assignment
    names = [output_name(step) for step in steps if isinstance(step, dict)]
    if match[2] not in names:
        raise UserError(
            f"{assignment}: no step is called {match[2]!r}; steps: {', '.join(names)}.{near_match(match[2], names)}",
            ErrorCode.UNKNOWN_NAME,
        )
    return f"steps.{names.index(match[2])}{match[3]}"


def output_name(step: dict[str, Any]) -> str:
    """What a step's output is called: ``as``, or else its operator."""
    return str(step.get("as") or step.get("operator"))


def one_of(given: str, known: Iterable[str], what: str, where: str) -> str:
    """``given`` if it is among ``known``; otherwise a ``UserError`` that names the nearest."""
    names = sorted(known)
    if given not in names:
        raise UserError(
            f"{where}: unknown {what} {given!r}; known: {', '.join(names) or 'none'}.{near_match(given, names)}",
            ErrorCode.UNKNOWN_NAME,
        )
    return given
