"""Specs, wordings and tasks that cannot be used are the world's fault, and it says what is wrong with them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.errors import user_error
from tests.synthesis.environments.examples import (
    BLOCKS_PROBLEM,
    BLOCKS_SPEC,
    WAREHOUSE_PROBLEM,
    WAREHOUSE_SPEC,
    warehouse,
)

SPEC_MISTAKES = {
    "domain": ({"source": "(define (domain"}, "never closed"),
    "missing text": ({"parameters": {"predicate_text": {}, "action_text": {}}}, "has no text for 'on'"),
    "no parameters": ({"parameters": {}}, "predicate_text"),
}


@pytest.mark.parametrize(("changes", "expected"), SPEC_MISTAKES.values(), ids=list(SPEC_MISTAKES))
def test_a_broken_spec_is_the_worlds_fault(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(EnvError, match=expected):
        PddlEnvironment(msgspec.structs.replace(BLOCKS_SPEC, **changes))


PARAMETER_MISTAKES = {
    "place": ({"action_text": {**WAREHOUSE_SPEC.parameters["action_text"], "go": "go {0} {1}"}}, "lacks a place"),
    "unknown": ({"action_text": {**WAREHOUSE_SPEC.parameters["action_text"], "goo": "x"}}, "Did you mean 'go'"),
    "denial": ({"denial_text": {"bussy": "{0} rests"}}, "Did you mean 'busy'"),
    "hidden": ({"hidden_predicates": ["bussy"]}, "Did you mean 'busy'"),
    "braces": ({"predicate_text": {**WAREHOUSE_SPEC.parameters["predicate_text"], "busy": "{r}"}}, "braces"),
    "zeros": ({"predicate_text": {**WAREHOUSE_SPEC.parameters["predicate_text"], "busy": "{00}"}}, "braces"),
}


@pytest.mark.parametrize(("changes", "expected"), PARAMETER_MISTAKES.values(), ids=list(PARAMETER_MISTAKES))
def test_a_wording_that_does_not_fit_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(EnvError, match=expected):
        warehouse(**changes)


def test_brackets_without_end_are_a_mistake_in_the_text() -> None:
    deep = "(and " * 500 + "(busy ?r)" + ")" * 500
    source = WAREHOUSE_SPEC.source.replace(":precondition (and", f":precondition (and {deep}", 1)
    assert source != WAREHOUSE_SPEC.source
    with pytest.raises(EnvError, match="brackets in one another"):
        PddlEnvironment(msgspec.structs.replace(WAREHOUSE_SPEC, source=source))


@pytest.mark.parametrize("state", [{}, {"problem": 3}, {"problem": "(define"}, {"problem": BLOCKS_PROBLEM}])
def test_a_broken_task_is_the_worlds_fault(state: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match="task t"):
        warehouse().reset(Task(task_id="t", environment_id="e", instruction="", initial_state=state), 0)


def test_a_world_must_be_reset_first() -> None:
    environment = PddlEnvironment(WAREHOUSE_SPEC)
    for use in (environment.state_digest, environment.snapshot, environment.check, environment.admissible):
        with pytest.raises(EnvError, match="not reset"):
            use()
    environment.close()


def test_an_unknown_family_gets_a_near_match() -> None:
    with user_error("unknown-name", "pddl"):
        make(EnvironmentSpec(environment_id="e", family="pdl", name="", source=WAREHOUSE_PROBLEM))
