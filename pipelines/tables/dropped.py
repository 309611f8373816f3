"""Why inputs were dropped, with examples from the dead letters; a table of these is never read as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from agentmill.pipelines.untrusted_text import cut, label
from agentmill.pipelines.view.sources import opened_file
from agentmill.schemas.arrow.check import MOST_LEVELS
from agentmill.schemas.arrow.convert import from_arrow
from agentmill.schemas.errors import NothingUsed
from agentmill.schemas.records.manifest import Counts, Manifest
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table, read_columns

MOST_REASONS = 12
EXAMPLES = 2
DETAIL_CHARACTERS = 400
INPUT_CHARACTERS = 1_000
# Few, since a dead letter may hold a raw record of a megabyte.
BATCH_ROWS = 200
TOLD_REASONS = 3
MAX_CHARACTERS = 300


class Example(msgspec.Struct, frozen=True):
    """A dead letter, cut where it is long."""

    input_id: str
    blamed: str
    detail: str
    input: str


class Reason(msgspec.Struct, frozen=True):
    """A reason, how many inputs of the table ``name`` were dropped for it, and some of them."""

    name: str
    reason: str
    n: int
    examples: list[Example]


def reasons(name: str, table: Table) -> list[Reason]:
    """The most frequent reasons of a table. Raises ``UserError`` for a file that is missing or damaged."""
    counted = sorted(table.manifest.reasons.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_REASONS]
    examples: dict[str, list[Example]] = {reason: [] for reason, _ in counted}
    for shard in table.dropped_shards():
        wanted = {reason: EXAMPLES - len(found) for reason, found in examples.items() if len(found) < EXAMPLES}
        if not wanted:
            break
        for letter in letters(shard, places(shard, wanted)):
            examples[letter.reason].append(example(letter))
    return [Reason(name, reason, n, examples[reason]) for reason, n in counted]


def places(shard: Path, wanted: dict[str, int]) -> list[int]:
    """The rows of the first dead letters of each reason, as many as are ``wanted``."""
    found = []
    for row, reason in enumerate(read_columns(shard, Dropped, ["reason"])["reason"].to_pylist()):
        if wanted.get(reason):
            wanted[reason] -= 1
            found.append(row)
    return found


def letters(shard: Path, rows: Sequence[int]) -> Iterator[Dropped]:
    """These rows of a file. Raises ``UserError`` if it is damaged."""
    start = 0
    if not rows:
        return
    with opened_file(shard) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            here = [row - start for row in rows if start <= row < start + len(batch)]
            start += len(batch)
            if here:
                yield from from_arrow(pa.Table.from_batches([batch]).take(here), Dropped)
            if start > rows[-1]:
                return


def example(letter: Dropped) -> Example:
    """A dead letter as an example."""
    given = without_empty(letter.input)
    text = msgspec.json.format(msgspec.json.encode(given), indent=2).decode() if given else ""
    return Example(
        cut(letter.input_id, DETAIL_CHARACTERS),
        letter.blamed,
        cut(letter.detail, DETAIL_CHARACTERS),
        cut(text, INPUT_CHARACTERS),
    )


def without_empty(value: Any, levels: int = MOST_LEVELS) -> Any:
    """``value`` without the keys whose value is null, an empty list or an empty object.

    What lies deeper than ``levels``, which tables of older versions may hold, is left out with a mark.
    """
    if isinstance(value, dict | list) and value and not levels:
        return "… (nested deeper)"
    if isinstance(value, dict):
        return {
            key: without_empty(inner, levels - 1)
            for key, inner in value.items()
            if inner is not None and inner not in ([], {})
        }
    if isinstance(value, list):
        return [without_empty(inner, levels - 1) for inner in value]
    return value


def used_nothing(manifest: Manifest) -> bool:
    """Whether inputs were read and all of them were dropped."""
    return manifest.counts.read > 0 and manifest.counts.used == 0


def used_too_few(manifest: Manifest, least: float) -> bool:
    """Whether a smaller share of the inputs than ``least`` was used, or none of them."""
    return used_nothing(manifest) or manifest.counts.used < least * manifest.counts.read


def refuse_unused(name: str, table: Table, in_round: bool = False, again: str = "run with --replace") -> None:
    """Raises ``NothingUsed``, with the most frequent reasons, if the step ``name`` dropped all its inputs.

    In a round of an ``iterate`` a table may be empty where the recipe itself chose none of the inputs
    (``blamed: curation``), since other rounds may give some. ``again`` says how to make the table anew.
    """
    if used_nothing(table.manifest) and not (in_round and _all_by_choice(table)):
        raise _too_few(name, table, "none", again)


def refuse_few(name: str, table: Table, least: float) -> None:
    """Raises ``NothingUsed``, with the most frequent reasons, if a step used less than ``least``."""
    counts = table.manifest.counts
    if counts.used < least * counts.read:
        raise _too_few(name, table, f"{counts.used:,}, less than min_used {least:g},", "run with --replace")


def refuse_few_counted(name: str, folder: Path, counts: Counts, reasons: Mapping[str, int], least: float) -> None:
    """As ``refuse_few``, for a step without a table of its own, such as a training: there are no examples to quote."""
    if counts.used < least * counts.read:
        most = sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0]))[:TOLD_REASONS]
        why = ", ".join(f"{reason} {n:,}" for reason, n in most)
        raise NothingUsed(
            f"step {name} used {counts.used:,}, less than min_used {least:g}, of its {counts.read:,} inputs ({why})\n"
            f"correct that, delete {folder} and run again"
        )


def _too_few(name: str, table: Table, used: str, again: str) -> NothingUsed:
    examples = []
    for each in reasons(name, table)[:TOLD_REASONS]:
        first = each.examples[0]
        quoted = f": {label(first.detail, MAX_CHARACTERS)}" if first.detail else ""
        examples.append(f"{each.reason} {each.n:,}, as {label(first.input_id, MAX_CHARACTERS)}{quoted}")
    # One reason alone is in the line itself.
    why = f" ({examples[0]})" if len(examples) == 1 else "; why, with an example each:"
    lines = [f"step {name} used {used} of its {table.manifest.counts.read:,} inputs{why}"]
    lines += [f"  {example}" for example in examples if len(examples) > 1]
    lines.append(f"correct that and {again}; more examples: agentmill inspect {table.folder} --dropped")
    return NothingUsed("\n".join(lines))


def unused_notes(manifest: Manifest) -> list[str]:
    """A warning if no input was used, which is accepted in a round of an ``iterate``."""
    if not used_nothing(manifest):
        return []
    why = ", ".join(f"{reason} {n}" for reason, n in manifest.reasons.items())
    return [f"warning: none of its {manifest.counts.read:,} inputs was used ({why})"]


def _all_by_choice(table: Table) -> bool:
    found = (read_columns(shard, Dropped, ["blamed"])["blamed"].unique() for shard in table.dropped_shards())
    return all(column.to_pylist() == ["curation"] for column in found if len(column))
