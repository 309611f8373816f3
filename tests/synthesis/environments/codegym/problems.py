"""Coding problems for tests: variations of the examples."""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.synthesis.environments.codegym.examples import GAUGE, GAUGE_SPEC
from agentmill.synthesis.environments.codegym.problem import Problem, write_problem


def changed(problem: Problem = GAUGE, **fields: Any) -> EnvironmentSpec:
    """A spec of ``problem`` with some of its fields replaced."""
    return msgspec.structs.replace(GAUGE_SPEC, source=write_problem(msgspec.structs.replace(problem, **fields)))


def rewritten(problem: Problem, part: str, old: str, new: str) -> EnvironmentSpec:
    """A spec of ``problem`` with a text in one of its parts replaced."""
    text = getattr(problem, part)
    assert old in text
    return changed(problem, **{part: text.replace(old, new)})
