"""A publication, ready to be sent: what was checked, and every file with its path on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from agentmill.pipelines.operators.export import export_documents
from agentmill.pipelines.publish import card
from agentmill.pipelines.publish.bundle import COPIES, RUN_FILES, Bundle, Published, gather
from agentmill.pipelines.publish.checks import Allowed, Check, all_checks, refused
from agentmill.pipelines.publish.difference import Branch, Difference, LocalFile, Remote, difference, lies_in
from agentmill.pipelines.publish.layout import SPLITS, mixes, split_tables
from agentmill.pipelines.publish.licences import declared_or_common, known, sources_of, with_stated
from agentmill.pipelines.publish.scan import scan
from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.format import Format
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.hub import tables_in
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.tables import Table

COPY_FORMATS = ("adp", "atif")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the publisher asks for. ``tables`` are ``[NAME=]TABLE``; ``source_licences`` go by source."""

    path: Path
    repo: str
    revision: str = "main"
    licence: str | None = None
    source_licences: Mapping[str, str] = {}
    tables: Sequence[str] = ()
    copies: Sequence[str] = ()
    title: str | None = None
    description: str | None = None
    author: str | None = None
    base_model: str | None = None
    allowed: Allowed = Allowed()

    @property
    def card_texts(self) -> dict[str, str]:
        """What the publisher adds to the card, by option."""
        given = {"--title": self.title, "--description": self.description, "--author": self.author}
        return {option: text for option, text in given.items() if text}


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """What would go up. ``owned`` are the paths of folders and files that hold nothing else afterwards.

    ``left`` are patterns of what an earlier publication may have left at the top, and which must not stay either.
    """

    branch: Branch
    checks: list[Check]
    files: dict[str, LocalFile]
    owned: frozenset[str]
    tables: list[str]
    left: Sequence[str] = ()

    @property
    def bytes(self) -> int:
        """Its size."""
        return sum(each.size for each in self.files.values())

    def difference(self, held: Remote, replace: bool) -> Difference:
        """What would change; with ``replace``, tables and copies that are not among these go."""
        gone = {*table_places(tables_in(held.files)), *copy_places(COPY_FORMATS)} if replace and self.tables else set()
        top = [path for path in held.files if "/" not in path]
        stale = {path for path in top if any(fnmatchcase(path, pattern) for pattern in self.left)}
        return difference(self.files, held, self.owned | gone | stale)

    def check(self) -> None:
        """Raises ``UserError`` if something is in the way."""
        found = refused(self.checks)
        if found:
            lines = "\n".join(f"  {each.name}: {each.detail}" for each in found)
            raise UserError(f"{self.branch.repo} is not published:\n{lines}", ErrorCode.CHECK_FAILED)


def dataset(order: Order, scratch: Path) -> Publication:
    """The publication of a table or a run as a data set; copies in other formats are written below ``scratch``.

    Raises ``UserError``.
    """
    if order.base_model is not None:
        raise UserError(f"{order.path} is no tuned model; --base-model is for these", ErrorCode.OPTION_NOT_FOR_THIS)
    bundle = gather(order.path, order.tables)
    if order.copies and not bundle.of("Trajectory"):
        raise UserError(
            f"{order.path} has no trajectories to publish; --copy is for these", ErrorCode.OPTION_NOT_FOR_THIS
        )
    given_licences = {name: known(licence) for name, licence in order.source_licences.items()}
    sources = with_stated(sources_of(bundle), given_licences)
    licence = declared_or_common(order.licence, sources)
    scans = {each.name: scan(each.table, each.name) for each in bundle.tables}
    details = details_of(order, licence)
    # What is in the card of tables that are not published is looked through as well; options are named by themselves.
    untitled = msgspec.structs.replace(details, title=None, description=None, author=None)
    shown = card.plain_text(card.dataset_card(bundle, scans, [], sources, untitled, [])[card.CARD])
    checks = all_checks(bundle, scans, licence, sources, order.allowed, {**order.card_texts, card.CARD: shown})
    # Not where something is in the way already: to write the rows again takes as long as there are many.
    by_split = {
        each.name: split_tables(each.table, scans[each.name], scratch / SPLITS / each.name)
        for each in ([] if refused(checks) else bundle.tables)
        if order.copies or mixes(scans[each.name])
    }
    copies, remarks = ({}, []) if refused(checks) else copied(bundle, order.copies, scratch, by_split)
    checks += remarks
    made = card.dataset_card(bundle, scans, checks, sources, details, sorted(copies))
    files = {
        **table_files(bundle.tables),
        **split_files({name: tables for name, tables in by_split.items() if mixes(scans[name])}),
        **{path.name: LocalFile.of(path) for path in bundle.run_files},
        **{name: LocalFile.of(path) for name, path in copies.items()},
        **{name: LocalFile.of(content) for name, content in made.items()},
    }
    names = [each.name for each in bundle.tables]
    owned = frozenset({*table_places(names), *copy_places(order.copies), *RUN_FILES, *card.PICTURES})
    branch = Branch(order.repo, "dataset", order.revision)
    return Publication(branch=branch, checks=checks, files=files, owned=owned, tables=names)


def details_of(order: Order, licence: str) -> card.CardDetails:
    """What the card has of the order."""
    return card.CardDetails(
        repo=order.repo,
        revision=order.revision,
        licence=licence,
        title=order.title,
        description=order.description,
        author=order.author,
    )


def table_places(names: Iterable[str]) -> set[str]:
    """Where the tables of these names lie on the Hub; what else is in their folders is not of them."""
    return {f"{name}/{part}" for name in names for part in (MANIFEST_NAME, "data", "dropped", SPLITS)}


def copy_places(formats: Iterable[str]) -> set[str]:
    """Where copies in these formats lie on the Hub."""
    return {f"{COPIES}/{name}" for name in formats}


def check_copies_stay(held: Remote, files: Iterable[str], replace: bool) -> None:
    """Raises ``UserError`` if copies in a format would go that ``files`` have none of, unless that is meant."""
    gone = sorted(copied_as(held.files) - copied_as(files))
    if gone and not replace:
        again = " ".join(f"--copy {name}" for name in gone)
        raise UserError(
            f"the data set holds copies as {', '.join(gone)}, which were made of what it holds now\n"
            f"make them anew with {again}, or pass --replace to take them away",
            ErrorCode.TABLES_WOULD_GO,
        )


def copied_as(paths: Iterable[str]) -> set[str]:
    """The formats in which there are copies among the files of a data set."""
    return {path.split("/")[1] for path in paths if lies_in(path, copy_places(COPY_FORMATS))}


def table_files(tables: Sequence[Published]) -> dict[str, LocalFile]:
    """The files of tables by their path on the Hub, with the digests that the manifests tell and a survey confirmed."""
    found = {}
    for each in tables:
        folder = each.table.folder
        found[f"{each.name}/{MANIFEST_NAME}"] = LocalFile.of(folder / MANIFEST_NAME)
        for path, file in each.table.manifest.held():
            found[f"{each.name}/{path}"] = LocalFile.of(folder / path, file.sha256)
    return found


def split_files(by_split: Mapping[str, Mapping[str, Table]]) -> dict[str, LocalFile]:
    """The files of tables by split, by their path on the Hub."""
    return {
        f"{name}/{SPLITS}/{split}/{file.name}": LocalFile.of(table.folder / "data" / file.name, file.sha256)
        for name, tables in by_split.items()
        for split, table in tables.items()
        for file in table.manifest.files
    }


def copied(
    bundle: Bundle, formats: Sequence[str], scratch: Path, by_split: Mapping[str, Mapping[str, Table]]
) -> tuple[dict[str, Path], list[Check]]:
    """Copies of the trajectory tables as JSON lines of ``formats``, by their path on the Hub, and what was left out.

    Foreign formats have no place for a split, so a table of several is copied by split, each in its own folder.
    """
    files: dict[str, Path] = {}
    checks = []
    for name in dict.fromkeys(formats):
        for each in bundle.of("Trajectory"):
            parts = {f"{each.config}/{split}": table for split, table in by_split[each.name].items()}
            for place, table in (parts or {each.config: each.table}).items():
                writer: Format = validate(FORMATS.load(name), {}, name)
                folder = scratch / COPIES / name / place
                exported = export_documents([table], name, writer, folder)
                files.update({f"{COPIES}/{name}/{place}/{path.name}": path for path in folder.iterdir()})
                counts, lost = exported.counts, ", ".join(sorted(exported.losses)) or "nothing"
                detail = f"{counts.written} of {counts.read} trajectories; no place in this format for: {lost}"
                checks.append(Check(f"copy of {place} as {name}", "note", detail))
    return files, checks
