"""``agentmill check KIND``."""

from __future__ import annotations

import click

from pipelines.cli.console import Row, answer, answers, example, say, table
from pipelines.engine.meter import metered
from schemas.errors import UserError, near_match
from schemas.record import Record
from synthesis.environments import ENVIRONMENTS
from synthesis.environments.conformance import Finding, check_environment
from synthesis.environments.environment import Family

FAILED = 1


class Checked(Record):
    """The findings on one example of a family."""

    family: str
    environment: str
    findings: list[Finding]


@click.group()
def check() -> None:
    """Check plug-ins against their contract."""


@check.command(epilog=example("agentmill check environments pddl"))
@click.argument("families", metavar="[FAMILY]...", nargs=-1)
@answers(list[Checked])
def environments(families: tuple[str, ...], as_json: bool) -> int:
    """Check families of environments on the examples they bring: all of them, or those named.

    Exit code 1 if an environment breaks the contract.
    """
    for family in families:
        if family not in ENVIRONMENTS:
            known = ", ".join(ENVIRONMENTS)
            raise UserError(f"unknown environment {family!r}; known: {known}.{near_match(family, ENVIRONMENTS)}")
    chosen = families or tuple(ENVIRONMENTS)
    checked: list[Checked] = []
    with metered("check", len(chosen)) as advance:
        for family in chosen:
            checked += check_family(family)
            advance(1)
    answer(checked, show, as_json)
    return FAILED if any(map(failures, checked)) else 0


def show(checked: list[Checked]) -> None:
    """Print the findings for people."""
    rows: list[Row] = [[each.family, each.environment, len(each.findings), len(failures(each))] for each in checked]
    table("environments", ["family", "example", "checks", "failed"], rows)
    for each in checked:
        for finding in failures(each):
            say(f"{each.family} {each.environment}: {finding.name}: {finding.detail}")


def check_family(family: str) -> list[Checked]:
    """The findings on every example of a family."""
    plugin: Family = ENVIRONMENTS.load(family)
    return [
        Checked(family=family, environment=spec.name, findings=check_environment(spec, task))
        for spec, task in plugin.examples()
    ]


def failures(checked: Checked) -> list[Finding]:
    """The checks that failed."""
    return [finding for finding in checked.findings if not finding.passed]
