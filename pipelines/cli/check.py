"""``agentmill check KIND``."""

from __future__ import annotations

import click
import msgspec

from pipelines.cli.console import Row, say, table
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


@check.command()
@click.argument("families", metavar="[FAMILY]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def environments(families: tuple[str, ...], as_json: bool) -> int:
    """Check families of environments on the examples they bring: all of them, or those named.

    Exit code 1 if an environment breaks the contract.
    """
    for family in families:
        if family not in ENVIRONMENTS:
            known = ", ".join(ENVIRONMENTS)
            raise UserError(f"unknown environment {family!r}; known: {known}.{near_match(family, ENVIRONMENTS)}")
    checked = [each for family in families or ENVIRONMENTS for each in check_family(family)]
    broken = [(each, finding) for each in checked for finding in each.findings if not finding.passed]
    if as_json:
        say(msgspec.json.encode(checked).decode())
    else:
        rows: list[Row] = [[each.family, each.environment, len(each.findings), failures(each)] for each in checked]
        table("environments", ["family", "example", "checks", "failed"], rows)
        for each, finding in broken:
            say(f"{each.family} {each.environment}: {finding.name}: {finding.detail}")
    return FAILED if broken else 0


def check_family(family: str) -> list[Checked]:
    """The findings on every example of a family."""
    plugin: Family = ENVIRONMENTS.load(family)
    return [
        Checked(family=family, environment=spec.name, findings=check_environment(spec, task))
        for spec, task in plugin.examples()
    ]


def failures(checked: Checked) -> int:
    """How many checks failed."""
    return sum(not finding.passed for finding in checked.findings)
