"""Whether the tables of a step hold what its parameters ask for: annotations by name, families of environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.stages.lookup import distinct
from pipelines.stages.stage import Inputs, Stage, tables_of
from schemas.errors import UserError, near_match
from schemas.tables import Table
from synthesis.environments import check_admissible

ANNOTATIONS = ("Verdict", "Label", "Value")
"""The records that have a name and are asked for by it."""

Names = frozenset[str] | None
"""The names of the annotations in a table; ``None`` where they are not known, as in a table without any row."""


def names_in(table: Table) -> Names:
    """The names of the annotations in a table. Nothing is known of one that cannot be read; who reads it says why."""
    return _distinct(table, "name") if table.manifest.record in ANNOTATIONS else None


def families_in(table: Table) -> frozenset[str] | None:
    """The families of the environments in a table."""
    return _distinct(table, "family") if table.manifest.record == "EnvironmentSpec" else None


def _distinct(table: Table, column: str) -> frozenset[str] | None:
    try:
        return distinct(table, column) or None
    except UserError:
        return None


def expect_asked(stage: Stage, reads: Mapping[str, Sequence[str]]) -> None:
    """Raises ``UserError`` where a parameter asks for annotations and no table may hold them."""
    for each in stage.asked():
        if each.role not in reads:
            raise UserError(f"`{each.parameter}` needs `{each.role}`")


def unasked_notes(stage: Stage) -> list[str]:
    """A warning for each role whose tables of annotations nothing asks: who names them meant something by it."""
    asked = {each.role for each in stage.asked()} | ({"verdicts"} if getattr(stage, "prefix", None) else set())
    return [
        f"warning: `{role}` is named, and nothing in this step asks it; leave it out, or ask it, as in `where`"
        for role in (f"{record.lower()}s" for record in ANNOTATIONS)
        if getattr(stage, role, None) and role not in asked
    ]


def check_names(stage: Stage, held: Mapping[str, Sequence[Names]]) -> None:
    """Raises ``UserError`` where no table of a role has the name that is asked for; ``held`` are the names by role."""
    for each in stage.asked():
        names = held.get(each.role, ())
        known = frozenset[str]().union(*(found for found in names if found is not None))
        if None not in names and each.name not in known:
            raise UserError(
                f"`{each.parameter}` asks for the {each.kind} {each.name!r}, which no table of `{each.role}` holds\n"
                f"{each.kind}s there: {', '.join(sorted(known)) or 'none'}.{near_match(each.name, known)}"
            )


def check_constrained(stage: Stage, inputs: Inputs) -> None:
    """Raises ``UserError`` where a step wants admissible actions of environments that do not list all of them."""
    asked = stage.wants_admissible()
    if asked is not None:
        tables = tables_of(inputs, "environments")
        check_admissible(asked, frozenset[str]().union(*(distinct(table, "family") for table in tables)))
