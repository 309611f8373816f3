"""``agentmill export TABLE --to …``."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec

from agentmill.pipelines.engine.provenance import check_ours
from agentmill.pipelines.operators.annotations import check_names, names_in
from agentmill.pipelines.operators.export import DROPPED, Exported, export_documents
from agentmill.pipelines.operators.make_table import make_table
from agentmill.pipelines.operators.operator import Operator, StepContext, WrongRecords
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.runs.tables import run_of
from agentmill.pipelines.tables.dropped import refuse_unused
from agentmill.pipelines.terminal.console import Row, answer, answers, example, say, table
from agentmill.pipelines.terminal.progress import progress_for
from agentmill.schemas.config import override, validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import NothingUsed, UserError, near_match
from agentmill.schemas.format import Format
from agentmill.schemas.formats import FORMATS, READ_ONLY
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts, Table
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS

ROWS = (*VIEWS, *PAIR_VIEWS, *FAMILY_VIEWS)
ELSEWHERE = "choose another folder with --out"
TARGETS = (*ROWS, *(name for name in FORMATS if name not in READ_ONLY))


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: a table of training rows of type ``record`` in ``folder``, or documents in a ``file`` there.

    ``read = used + dropped``; ``reasons`` says why rows were dropped, and ``losses`` counts, by field, what a foreign
    format has no place for. ``notes`` are the warnings about rows.
    """

    target: str
    folder: str
    file: str | None = None
    record: str | None = None
    counts: Counts
    reasons: dict[str, int]
    losses: dict[str, int] = {}
    notes: list[str] = []


@click.command(
    epilog=example(
        "agentmill export runs/quickstart/explored --to adp --out runs/adp",
        "agentmill export runs/quickstart/demonstrations --to sft --out runs/rows rows=step",
    )
)
@click.argument("arguments", metavar="TABLE... [KEY=VALUE]...", nargs=-1, required=True)
@click.option("--to", "target", metavar="TARGET", required=True, help=f"What to write: {', '.join(TARGETS)}.")
@click.option("--out", "folder", metavar="FOLDER", required=True, type=click.Path(path_type=Path), help="Where to.")
@click.option("--pairs", is_flag=True, help="Write trajectories that were read from preference pairs as pairs again.")
@click.option("--verdicts", multiple=True, metavar="TABLE", help="Verdicts on them, for where=success and the like.")
@click.option("--labels", multiple=True, metavar="TABLE", help="Labels of them or their steps.")
@click.option("--values", multiple=True, metavar="TABLE", help="Values of them or their steps.")
@click.option("--quality", multiple=True, metavar="TABLE", help="Counts of them, made by the step quality.")
@click.option(
    "--selections",
    multiple=True,
    metavar="TABLE",
    help="Tables of selections; each that lists a trajectory must keep it.",
)
@answers(Export)
def export(
    arguments: tuple[str, ...], target: str, folder: Path, pairs: bool, as_json: bool, **filters: tuple[str, ...]
) -> None:
    """Write trajectories as training rows, a table, or in a foreign format, as JSON lines.

    TABLE is a table of trajectories; for llamafactory, sharegpt and trl it may be one of preference rows, too.
    KEY=VALUE are parameters of the target, for example where=success and rows=step for sft, version=1 for adp, or
    dialect=fenced and dialect_options.languages=[bash] for sharegpt. What one of several selections keeps is written
    with selections='{any: [TABLE, TABLE]}', and what none knows is left out with strict: true in it.
    """
    if target not in TARGETS:
        raise UserError(
            f"unknown target {target!r}; known: {', '.join(TARGETS)}.{near_match(target, TARGETS)}",
            ErrorCode.UNKNOWN_NAME,
        )
    # A path may hold an equals sign.
    tables = [each for each in arguments if "=" not in each or is_path(each)]
    parameters = [each for each in arguments if each not in tables]
    if not tables:
        raise UserError(
            "no table is given; expected for example: agentmill export runs/quickstart/demonstrations …",
            ErrorCode.ARGUMENT_MISSING,
        )
    if pairs and target in ROWS:
        raise UserError(f"--pairs is for foreign formats, not for {target}", ErrorCode.OPTION_NOT_FOR_THIS)
    if target in ROWS:
        named = {role: list(given) for role, given in filters.items()}
        exported = export_rows(target, {"from": tables, **named}, override({}, parameters), folder)
    elif any(filters.values()):
        named_roles = " and ".join(f"--{role}" for role, given in filters.items() if given)
        raise UserError(
            f"{named_roles} can be given for training rows ({', '.join(ROWS)}), not for {target}",
            ErrorCode.OPTION_NOT_FOR_THIS,
        )
    else:
        check_is_written(target)
        writer: Format = validate(FORMATS.load(target), options_of(parameters), target)
        made = export_documents([Table.open(each) for each in tables], target, writer, folder, pairs)
        refuse_unwritten(target, made, folder)
        exported = Export(target=target, folder=str(folder), **msgspec.structs.asdict(made))
    answer(exported, show, as_json)


def check_is_written(target: str) -> None:
    """Raises ``UserError`` for a format of a plug-in that is only read."""
    found = FORMATS.load(target)
    if not hasattr(found, "write"):
        raise UserError(
            f"{target} is a format that is only read; to have it written, give {found.__name__} a method `write`",
            ErrorCode.OPTION_NOT_FOR_THIS,
        )


def is_path(text: str) -> bool:
    """Whether something is at the path ``text``; nothing is where a path cannot be that long."""
    try:
        return Path(text).exists()
    except OSError:
        return False


def options_of(parameters: Sequence[str]) -> JsonObject:
    """Options of a format. Texts become what an option is; lists, mappings and values within one (``a.b=…``) are YAML.

    Raises ``UserError``.
    """
    split = [(*each.partition("=")[::2], each) for each in parameters]
    plain = {key: value for key, value, _ in split if "." not in key and not value.startswith(("[", "{"))}
    within: JsonObject = {key.partition(".")[0]: {} for key, _, _ in split if "." in key}
    return override({**plain, **within}, [each for key, _, each in split if key not in plain])


def export_rows(view: str, named: dict[str, list[str]], parameters: JsonObject, folder: Path) -> Export:
    """Write training rows through a view; the operator of that name does it."""
    given = {role: names for role, names in named.items() if names}
    twice = sorted(given.keys() & parameters.keys())
    if twice:
        raise UserError(
            f"{twice[0]} is given twice, as an option and as {twice[0]}=…; expected one of them", ErrorCode.GIVEN_TWICE
        )
    operator: Operator = validate(OPERATORS.load(view), {**parameters, **given}, f"export --to {view}")
    inputs = {role: [Table.open(name) for name in names] for role, names in operator.tables().items()}
    check_records(operator, inputs)
    check_names(operator, {role: [names_in(each) for each in tables] for role, tables in inputs.items()})
    check_place(folder)
    context = StepContext(operator=view, name=folder.name, folder=folder)
    try:
        manifest = make_table(operator, inputs, context, progress=progress_for(sys.stderr))
    except UserError as error:
        if error.code != ErrorCode.MADE_DIFFERENTLY:
            raise
        # The advice of a step is to replace the table, which an export never does.
        raise UserError(f"{str(error).partition(chr(10))[0]}\n{ELSEWHERE}, or remove it", error.code) from error
    refuse_unused(folder.name, Table(folder, manifest), again="export to another --out")
    return Export(
        target=view,
        folder=str(folder),
        record=manifest.record,
        counts=manifest.counts,
        reasons=manifest.reasons,
        notes=operator.notes(manifest),
    )


def check_records(operator: Operator, inputs: Mapping[str, Sequence[Table]]) -> None:
    """Raises ``UserError``, naming the table, if one holds records that the view does not take in its role."""
    try:
        operator.writes({role: [each.manifest.record for each in tables] for role, tables in inputs.items()})
    except WrongRecords as error:
        # Of a recipe, a role is a key; here the user gave the tables alone.
        folders = " and ".join(str(each.folder) for each in inputs[error.role])
        raise UserError(f"{folders} {error.mismatch}", error.code) from error


def check_place(folder: Path) -> None:
    """Raises ``UserError`` if something else than a table is at ``folder``."""
    if run_of(folder) == folder.resolve():
        raise UserError(f"{folder} is a run; {ELSEWHERE}", ErrorCode.OUTPUT_NOT_OURS)
    # A finished table is compared with what is to be written.
    if not (folder / MANIFEST_NAME).exists():
        check_ours(folder, ELSEWHERE)


def refuse_unwritten(target: str, made: Exported, folder: Path) -> None:
    """Raises ``NothingUsed`` if no trajectory could be written in a foreign format."""
    if made.counts.read and not made.counts.used:
        why = ", ".join(f"{reason} {n:,}" for reason, n in Counter(made.reasons).most_common())
        raise NothingUsed(
            f"export to {target} used none of its {made.counts.read:,} inputs ({why})\n"
            f"{folder / DROPPED} has all reasons; correct the cause and export to another --out"
        )


def show(exported: Export) -> None:
    """Print what was written, and what the format could not say."""
    counts = exported.counts
    place = Path(exported.folder) / (exported.file or "")
    say(f"{place}: read {counts.read}, used {counts.used}, dropped {counts.dropped}, written {counts.written}")
    for note in exported.notes:
        say(note)
    trainer = RECORD_KINDS[exported.record].trainer if exported.record is not None else None
    if trainer is not None:
        words = ["agentmill", "train", trainer, "--config", f"configs/stages/train_{trainer}.yaml", f"rows={place}"]
        say(f"train on it with: {shlex.join(words)}")
    for title, found in (("dropped, by reason", exported.reasons), ("no place in this format for", exported.losses)):
        if found:
            rows: list[Row] = [[name, n] for name, n in sorted(found.items())]
            table(title, ["what", "n"], rows)
