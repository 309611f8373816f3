"""What is looked at before anything is published, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import polars as pl

from agentmill.pipelines.publish.bundle import Bundle
from agentmill.pipelines.publish.licences import SourceCount, conflicts
from agentmill.pipelines.publish.scan import Finding, Scan
from agentmill.pipelines.sensitive.patterns import PATH, sensitive_in
from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.tables import Table

Level = Literal["passed", "note", "refused"]
HELD_OUT = {"held_out", "held_out_environments"}
"""The splits of environments, and of tasks in them, that nothing else may be played in."""

FEW = 5


class Check(msgspec.Struct, frozen=True):
    """One check. ``note``: people should know, and the card says it; ``refused``: it must not go up as it is.

    ``items`` are what was found, in full.
    """

    name: str
    level: Level
    detail: str
    items: list[str] = []


class Allowed(msgspec.Struct, frozen=True):
    """What the publisher has looked at and lets pass."""

    secrets: bool = False
    leaks: bool = False
    personal: bool = True


def all_checks(
    bundle: Bundle,
    scans: Mapping[str, Scan],
    licence: str,
    sources: Sequence[SourceCount],
    allowed: Allowed,
    card_texts: Mapping[str, str],
) -> list[Check]:
    """Every check of a data set, in the order of the report.

    ``card_texts`` are the texts that the publisher adds to the card, by the name of the option.
    """
    texts = {**texts_of(bundle), **card_texts}
    findings = [*(each for scan in scans.values() for each in scan.findings), *in_files(texts)]
    return [
        schema(scans),
        counts(scans),
        secrets(findings, allowed),
        personal(findings, allowed),
        local_paths(findings),
        licences(licence, sources),
        leaks(scans.values(), allowed),
        decontamination(bundle.origins),
        duplicates(scans),
    ]


def schema(scans: Mapping[str, Scan]) -> Check:
    """A table that is not as its manifest says is never surveyed, so these are in order."""
    return Check("schema", "passed", f"{len(scans)} tables are as their manifests say, by digest")


def counts(scans: Mapping[str, Scan]) -> Check:
    """How much there is; nothing is not worth a publication."""
    held = scans.values()
    rows, characters, tokens = (
        sum(getattr(each, what) for each in held) for what in ("rows", "characters", "stored_tokens")
    )
    detail = f"{rows:,} rows, {characters:,} characters of content, {tokens:,} stored token ids"
    empty = [name for name, each in scans.items() if not each.rows]
    if not rows:
        return Check("counts", "refused", f"there are no rows in {', '.join(empty)}; publish what has some", empty)
    if empty:
        return Check("counts", "note", f"{detail}; tables without rows, which cannot be loaded: {few(empty)}", empty)
    return Check("counts", "passed", detail)


def secrets(findings: Iterable[Finding], allowed: Allowed) -> Check:
    """Tokens and keys; never shown themselves."""
    items = [finding_text(each) for each in findings if each.sort == "secret"]
    if not items:
        return Check("secrets", "passed", "no tokens or private keys of known forms")
    level: Level = "note" if allowed.secrets else "refused"
    advice = "" if allowed.secrets else "; take these rows out, or pass --allow-secrets once you know they are harmless"
    return Check("secrets", level, f"tokens or private keys: {few(items)}{advice}", items)


def personal(findings: Iterable[Finding], allowed: Allowed) -> Check:
    """E-mail addresses and telephone numbers."""
    items = [finding_text(each) for each in findings if each.sort == "personal"]
    if not items:
        return Check("personal data", "passed", "no e-mail addresses or telephone numbers; names are not looked for")
    return Check("personal data", "note" if allowed.personal else "refused", few(items), items)


def local_paths(findings: Iterable[Finding]) -> Check:
    """Where things lie on the machine that made them."""
    items = [finding_text(each) for each in findings if each.sort == "path"]
    if not items:
        return Check("local paths", "passed", "no absolute paths in files that agentmill wrote")
    return Check("local paths", "note", f"absolute paths of the machine that made it: {few(items)}", items)


def finding_text(finding: Finding) -> str:
    """A finding in words."""
    if not finding.ids:
        return f"{finding.kind} in {finding.table}"
    more = f" and {finding.rows - len(finding.ids):,} more" if finding.rows > len(finding.ids) else ""
    rows = "row" if finding.rows == 1 else "rows"
    return f"{finding.kind} in {finding.rows:,} {rows} of {finding.table} ({', '.join(finding.ids)}{more})"


def texts_of(bundle: Bundle) -> dict[str, str]:
    """The small files that go up besides the rows, by name."""
    manifests = {f"{each.name}/{MANIFEST_NAME}": each.table.folder / MANIFEST_NAME for each in bundle.tables}
    files = {**{path.name: path for path in bundle.run_files}, **manifests}
    return {name: path.read_text(encoding="utf-8", errors="replace") for name, path in files.items()}


def in_files(files: Mapping[str, str]) -> list[Finding]:
    """What is sensitive in small files, by name."""
    return [
        Finding(*kind, table=name, rows=0, ids=[])
        for name, text in files.items()
        for kind in sensitive_in(pl.Series([text]), PATH)
    ]


def licences(licence: str, sources: Sequence[SourceCount]) -> Check:
    """The declared licence against those of the sources."""
    items = conflicts(licence, sources)
    if items:
        return Check("licences", "refused", f"{licence} is declared, but {few(items)}", items)
    named = sorted({f"{each.dataset} ({each.licence})" for each in sources})
    return Check("licences", "passed", f"{licence}; sources: {few(named) if named else 'none'}", named)


def leaks(scans: Iterable[Scan], allowed: Allowed) -> Check:
    """Tasks, held-out environments and equal texts that are in more than one split, of one table or of several."""
    found = [*scans]
    named = sorted({split for each in found for split in each.splits if split})
    # A row that tells no split cannot be in two.
    marks = pl.concat([each.marks for each in found]).drop_nulls("split").unique()
    items = [
        f"{kind} {key} in {', '.join(sorted(splits))}"
        # Sorted, since Polars gives groups in any order.
        for kind, key, splits in marks.group_by("kind", "key").agg("split").sort("kind", "key").iter_rows()
        if leaking(kind, set(splits))
    ]
    contents = pl.concat([each.contents for each in found]).drop_nulls("split").unique()
    repeated = int((contents.get_column("hash").value_counts().get_column("count") > 1).sum())
    items += [f"{repeated:,} texts that are in several splits"] if repeated else []
    if not items:
        return Check("split leaks", "passed", compared(named, marks, contents))
    level: Level = "note" if allowed.leaks else "refused"
    advice = "" if allowed.leaks else "; make the splits anew, or pass --allow-leaks to publish and say so"
    return Check("split leaks", level, f"{few(items)}{advice}", items)


def compared(splits: Sequence[str], marks: pl.DataFrame, contents: pl.DataFrame) -> str:
    """What the check of splits, which found nothing, had to go by."""
    if len(splits) < 2:
        return f"there is one split only, {splits[0]}" if splits else "no row has a split"
    ids = dict(marks.group_by("kind").agg(pl.col("key").n_unique()).iter_rows())
    tasks, environments = ids.get("task_id", 0), ids.get("environment_id", 0)
    finding_text = f"{len(contents):,} texts, {tasks:,} ids of tasks and {environments:,} of environments compared"
    return f"nothing is in two of the splits {', '.join(splits)}: {finding_text}"


def leaking(kind: str, splits: set[str]) -> bool:
    """Whether a task, or an environment, may not be in all these splits."""
    if kind == "task_id":
        return len(splits) > 1
    return bool(splits & HELD_OUT and splits - HELD_OUT)


def decontamination(origins: Iterable[Table]) -> Check:
    """What the steps that compared the data with benchmarks left out; nothing is known of other comparisons."""
    made = [table.manifest for table in origins if table.manifest.operator == "decontaminate"]
    items = [
        f"{each.table}: {sum(n for name, n in each.metrics.items() if name.startswith('contaminated.')):,.0f} of"
        f" {each.counts.read:,} rows left out"
        for each in made
        if each.record != "Verdict"
    ]
    if not items:
        return Check("decontamination", "note", "no decontamination against benchmarks was run")
    return Check("decontamination", "passed", f"compared with benchmarks: {few(items)}", items)


def duplicates(scans: Mapping[str, Scan]) -> Check:
    """Rows that say what another row of their table says."""
    items = [f"{name}: {each.repeated:,} of {each.rows:,} rows" for name, each in scans.items() if each.repeated]
    if not items:
        return Check("duplicates", "passed", "no two rows of a table say the same")
    return Check("duplicates", "note", f"rows that repeat another one's texts: {few(items)}", items)


def few(items: Sequence[str]) -> str:
    """The first of ``items``, and how many there are more."""
    more = f"; and {len(items) - FEW} more" if len(items) > FEW else ""
    return "; ".join(items[:FEW]) + more


def refused(checks: Iterable[Check]) -> list[Check]:
    """Those that prevent publishing."""
    return [each for each in checks if each.level == "refused"]
