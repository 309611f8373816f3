"""Verdicts, labels, values and counts of quality, indexed by trajectory id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentmill.pipelines.operators.lookup import Shards, distinct
from agentmill.pipelines.operators.operator import Inputs, Operator, tables_of
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.record_kinds import ANNOTATION_ROLES, RECORD_KINDS
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Quality
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import NOTHING, Annotations, score
from agentmill.synthesis.environments import check_admissible
from agentmill.synthesis.rollouts.episode import TIMEOUT

COLUMNS: Mapping[str, list[str]] = {
    "verdicts": ["item", "score", "passed", "reason"],
    "labels": ["item", "reason"],
    "values": ["item"],
    "quality": [
        field.name for field in msgspec.structs.fields(Quality) if not field.required and field.name != "code_languages"
    ],
}
"""The columns that are read of the tables of a role; evidence of verdicts may be long, and is read where asked for."""

COUNTED_WITH = {
    **dict.fromkeys(("tokens", "longest_text"), "`tokenizer: FOLDER`"),
    **dict.fromkeys(("secrets", "personal", "paths"), "`sensitive: true`"),
    **dict.fromkeys(("refusals", "refused"), "`--replace`: an earlier version made it"),
}
"""What the step ``quality`` needs for a count that it does not always make."""

ANNOTATIONS = [ANNOTATION_ROLES[role] for role in COLUMNS if role != "quality"]
"""The records that have a name and are asked for by it."""


class AnnotationIndex:
    """Evidence by trajectory. Pickles as paths; each worker loads it once."""

    def __init__(self, inputs: Inputs, roles: Sequence[str] = tuple(COLUMNS), evidence: bool = False) -> None:
        """``evidence``: that of verdicts is read, too."""
        columns = {**COLUMNS, **({"verdicts": [*COLUMNS["verdicts"], "evidence"]} if evidence else {})}
        self._shards: dict[str, Shards[Any]] = {
            role: Shards(tables_of(inputs, role), RECORD_KINDS[ANNOTATION_ROLES[role]].type, columns[role])
            for role in roles
        }
        self._index: dict[str, Annotations] = {}

    def load(self) -> None:
        """Read the tables.

        Raises ``UserError`` for a file that cannot be read, and for records that differ though they have the same
        trajectory, item and name: no order of tables decides which of two verdicts holds.
        """
        found: dict[str, dict[str, dict[Any, Any]]] = {}
        for role, shards in self._shards.items():
            for each in shards:
                own = found.setdefault(each.trajectory_id, {name: {} for name in COLUMNS})
                if role == "quality":
                    shards.put(own[role], role, each, f"trajectory {each.trajectory_id}")
                    continue
                of = f"trajectory {each.trajectory_id}" + ("" if each.item is None else f", item {each.item}")
                shards.put(own[role], (each.item, each.name), each, f"{each.name!r} of {of}")
        self._index = {
            trajectory_id: Annotations(
                verdicts=own["verdicts"],
                labels=own["labels"],
                values=own["values"],
                quality=own["quality"].get("quality"),
            )
            for trajectory_id, own in found.items()
        }

    def of(self, trajectory_id: str) -> Annotations:
        """The annotations of a trajectory; nothing if it is not known."""
        return self._index.get(trajectory_id, NOTHING)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": {}}


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


def check_annotation_needs(parameters: Operator, reads: Mapping[str, Sequence[str]]) -> None:
    """Raises ``UserError`` where a parameter asks for annotations and no table may hold them."""
    for each in parameters.annotation_needs():
        if each.role not in reads:
            raise UserError(f"`{each.parameter}` needs `{each.role}`", ErrorCode.NEEDS_ANOTHER_KEY)


def unasked_notes(parameters: Operator) -> list[str]:
    """A warning for each role whose tables of annotations nothing asks: who names them meant something by it."""
    annotation_needs = {each.role for each in parameters.annotation_needs()} | (
        {"verdicts"} if getattr(parameters, "prefix", None) else set()
    )
    return [
        f"warning: `{role}` is named, and nothing in this step asks it; leave it out, or ask it, as in `where`"
        for role in COLUMNS
        if getattr(parameters, role, None) and role not in annotation_needs
    ]


def check_names(parameters: Operator, held: Mapping[str, Sequence[Names]]) -> None:
    """Raises ``UserError`` where no table of a role has the name that is asked for; ``held`` are the names by role."""
    for each in parameters.annotation_needs():
        names = held.get(each.role, ())
        known = frozenset[str]().union(*(found for found in names if found is not None))
        # A table whose names are not known may hold it.
        if None not in names and each.name not in known:
            raise UserError(
                f"`{each.parameter}` asks for the {each.kind} {each.name!r}, which no table of `{each.role}` holds\n"
                f"{each.kind}s there: {', '.join(sorted(known)) or 'none'}.{near_match(each.name, known)}",
                ErrorCode.ANNOTATION_MISSING,
            )


def check_counts(parameters: Operator, inputs: Inputs) -> None:
    """Raises ``UserError`` where a condition asks for a count that the tables of ``quality`` were made without."""
    tables = [table for table in tables_of(inputs, "quality") if table.manifest.counts.written]
    for each in parameters.annotation_needs():
        if each.kind != "quality" or each.name not in COUNTED_WITH or not tables:
            continue
        if all(getattr(row, each.name) is None for table in tables for row in table.rows([each.name])):
            raise UserError(
                f"`{each.parameter}`: {' and '.join(str(table.folder) for table in tables)} has no {each.name}, so"
                f" nothing would fulfil it\nmake the table with {COUNTED_WITH[each.name]}, or leave the condition out",
                ErrorCode.ANNOTATION_MISSING,
            )


def check_constrained(parameters: Operator, inputs: Inputs) -> None:
    """Raises ``UserError`` where a step wants admissible actions of environments that do not list all of them."""
    annotation_needs = parameters.wants_admissible()
    if annotation_needs is not None:
        tables = tables_of(inputs, "environments")
        check_admissible(annotation_needs, frozenset[str]().union(*(distinct(table, "family") for table in tables)))


def score_within_time(criterion: str, trajectory: Trajectory, annotations: Annotations) -> float | None:
    """The score of an attempt; ``None``, too, for one that ``episode_timeout_s`` ended before it passed.

    The time depends on the machine and its load, and not on the policy.
    """
    found = score(criterion, trajectory, annotations)
    return None if found is not None and found < 1 and trajectory.outcome.reason == TIMEOUT else found
