"""``agentmill check PATH`` and ``agentmill check KIND``."""

from __future__ import annotations

from pathlib import Path

import click

from agentmill.pipelines.runs.check import CheckedTable, check_tables, tables_below
from agentmill.pipelines.terminal.console import Row, answer, answers, example, log, say, table
from agentmill.pipelines.terminal.progress import displayed
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.record import Record
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.conformance import Finding, check_environment
from agentmill.synthesis.environments.environment import Family

FAILED = 1


class Checked(Record):
    """The findings on one example of a family."""

    family: str
    environment: str
    findings: list[Finding]


class PathOrKind(click.Group):
    """A group for which anything that is not the name of a command is a path to ``tables``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names, or ``tables``."""
        first = next((each for each in args if not each.startswith("-")), "")
        return super().resolve_command(ctx, args if first in self.commands else ["tables", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave options before a path, as ``--json``, to ``tables``."""
        helps = {*ctx.help_option_names}
        if args and args[0].startswith("-") and args[0] not in helps:
            args = ["tables", *args]
        return super().parse_args(ctx, args)


@click.group(cls=PathOrKind, epilog=example("agentmill check runs/line", "agentmill check environments pddl"))
def check() -> None:
    """Check a run or a table, or plug-ins against their contract.

    PATH, the folder of a run or of a table, stands for the command `tables PATH`.
    """


@check.command(epilog=example("agentmill check runs/line", "agentmill check runs/line/explored --json"))
@click.argument("path", type=click.Path(path_type=Path))
@answers(list[CheckedTable])
def tables(path: Path, as_json: bool) -> int:
    """Read every file of a run or a table and compare it with the manifests: digests, counts, inputs.

    Exit code 1 if something is not as it should be.
    """
    if not path.exists():
        near = near_match(str(path), [name for name in check.commands if name != "tables"])
        raise UserError(
            f"there is no {path}; expected the folder of a run or of a table.{near}", ErrorCode.NO_SUCH_FILE
        )
    with displayed("check", len(tables_below(path))) as advance:
        checked = check_tables(path, advance)
    answer(checked, show_tables, as_json)
    return FAILED if any(each.wrong for each in checked) else 0


def show_tables(checked: list[CheckedTable]) -> None:
    """Print a row for each table, and below what is wrong."""
    rows: list[Row] = [[each.path, each.files, each.rows, each.dropped, len(each.wrong)] for each in checked]
    table("tables", ["table", "files", "rows", "dropped", "wrong"], rows)
    for each in checked:
        for line in each.wrong:
            say(f"{each.path}: {line}")
        if each.not_found:
            log(f"{each.path} is in no run, and its folder has no inputs {', '.join(each.not_found)}: not compared")


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
            raise UserError(
                f"unknown environment {family!r}; known: {known}.{near_match(family, ENVIRONMENTS)}",
                ErrorCode.UNKNOWN_NAME,
            )
    chosen = families or tuple(ENVIRONMENTS)
    checked: list[Checked] = []
    with displayed("check", len(chosen)) as advance:
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
