"""Every family keeps the contract, and every check finds the environment that breaks it."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.conformance import CHECKS, Subject, check_environment
from agentmill.synthesis.sandbox import pool
from tests.synthesis.environments.broken import BREAKS
from tests.synthesis.environments.examples import WAREHOUSE_SPEC, WAREHOUSE_TASK

EXAMPLES: list[tuple[EnvironmentSpec, Task]] = [
    example for family in ENVIRONMENTS for example in ENVIRONMENTS.load(family).examples()
]


@pytest.mark.parametrize(("spec", "task"), EXAMPLES, ids=[spec.environment_id for spec, _ in EXAMPLES])
def test_every_example_conforms(spec: EnvironmentSpec, task: Task) -> None:
    if spec.family in ("codegym", "interpreter"):
        with pool().session():
            """Says so where there can be none."""
    findings = check_environment(spec, task)
    assert [finding.name for finding in findings] == list(CHECKS)
    assert [finding for finding in findings if not finding.passed] == []


def test_every_family_has_examples() -> None:
    assert {spec.family for spec, _ in EXAMPLES} == set(ENVIRONMENTS)


def find(name: str, maker: str = "PddlEnvironment", **changes: object) -> str:
    """What one check says of the warehouse made by a class of ``broken``."""
    module = "tests.synthesis.environments.broken"
    subject = Subject(
        spec=WAREHOUSE_SPEC,
        task=msgspec.structs.replace(WAREHOUSE_TASK, **changes),
        seeds=(0, 1),
        maker=f"{module}:{maker}",
    )
    return CHECKS[name](subject)


@pytest.mark.parametrize(
    ("broken", "name"), [item for item in BREAKS.items() if item[0] not in ("OnceClosed", "Crashing")]
)
def test_a_broken_environment_is_found(broken: str, name: str) -> None:
    """By what it says, or by the exception that ``check_environment`` reports."""
    try:
        said = find(name, broken)
    except OSError as error:
        said = str(error)
    assert said != ""


def test_a_wrong_gold_solution_is_found() -> None:
    commands = ["send rob from dock to aisle"]
    assert find("gold_is_accepted", gold=[MessageAction(content=command) for command in commands]) != ""
    commands += ["let rob lift crate1 in aisle", "send rob from aisle to depot", "let rob drop crate1 in depot"]
    commands += ["send rob from depot to aisle"]
    assert find("gold_is_accepted", gold=[MessageAction(content=command) for command in commands]) == ""


def test_an_exception_is_a_finding_and_ends_nothing() -> None:
    maker = "tests.synthesis.environments.broken:Crashing"
    findings = {finding.name: finding for finding in check_environment(WAREHOUSE_SPEC, WAREHOUSE_TASK, (0,), maker)}
    assert list(findings) == list(CHECKS)
    assert findings["commands_are_read"].detail == "ZeroDivisionError: no actions today"
    assert findings["doing_nothing_is_no_solution"].passed


def test_every_check_has_an_environment_that_fails_it() -> None:
    assert set(CHECKS) == {*BREAKS.values(), "gold_is_accepted"}
