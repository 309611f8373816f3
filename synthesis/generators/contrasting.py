"""Twins of tasks that ask for another behaviour, and how a family of environments declares that it has them.

After Agent-FLAN (arXiv:2403.12881: tools that are not there, or do not serve), DiaFORGE (missing arguments), AgentAlign
(harmful requests) and Proactive Agent (nothing to do).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.generators.generator import GenerationError

Kind = Literal["no_tool", "irrelevant_tool", "missing_argument", "harmful", "silent", "solvable"]
"""``solvable`` is the control: the task as it is, in the environment of the other twins, is to be solved."""

KINDS: tuple[Kind, ...] = get_args(Kind)

Tools = Literal["own", "none", "others"]
"""The tools that an environment of twins offers: those of its parent, none, or tools of another matter instead."""

TOOLS: Mapping[Kind, Tools] = {
    "no_tool": "none",
    "irrelevant_tool": "others",
    "missing_argument": "own",
    "harmful": "own",
    "silent": "own",
    "solvable": "own",
}
"""The tools that each kind of twin needs."""


class TwinMaker(msgspec.Struct, frozen=True):
    """How a family makes environments of twins, and then twins of tasks in them: the same for the same arguments.

    ``task`` is called with an environment that offers the tools of the kind. It proves that the right behaviour is
    accepted there and, but for ``solvable``, that of the parent is not. Both give a ``GenerationError`` with its reason
    where there is no twin.
    """

    environment: Callable[[EnvironmentSpec, Tools, int], EnvironmentSpec | GenerationError]
    task: Callable[[Task, EnvironmentSpec, Kind, int], Task | GenerationError]
