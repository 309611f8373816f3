"""Inspirations: the texts that environments are made from, out of a file or, without one, a few of our own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentmill.schemas.arrow.check import is_utf8
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import Inspiration
from agentmill.schemas.text_file import read_text

BUILT_IN = (
    "Plan the evening service of a small restaurant: every dish is washed, chopped and cooked before a guest eats it.",
    "A night shift must ship two hundred parcels, but the warehouse has one truck and narrow doors between its halls.",
    "Explain how nurses bring the right medicine to each patient on a ward where some rooms are kept locked.",
    "Sort the returned books of a library and carry each one back to the shelf that it belongs to.",
    "Write a checklist for a crew that repairs a space station and has to watch the level of its oxygen tanks.",
    "A farm grows vegetables in raised beds; describe how water, soil and harvest are handled in one week.",
    "My car does not start. Which parts does a mechanic inspect first, and which tools are needed for the engine?",
    "Prepare samples for a chemistry experiment: mix, heat and label them without leaving any flask dirty.",
    "Who collects the signed contracts from three departments before the meeting of the board begins?",
    "Build the stage of a school theatre: paint the panels, assemble the frames and hang the lights.",
    "Fishing boats wait in the harbour until the tide is high enough to unload their crates at the quay.",
    "Teach a class of children to tidy up together, so that all toys are back in their boxes when the bell rings.",
    "Compare two routes for delivering bread to six villages when the bridge between two of them is closed.",
    "A courier collects keys from different offices, since every door in the tower opens with another one.",
    "Describe the steps from raw clay to a glazed bowl in a pottery, including two firings in the same oven.",
    "How should friends who live in different towns travel so that they all meet at the same station?",
    "Charge the batteries of the delivery robots and make sure that none of them stops halfway along a corridor.",
    "Design a puzzle in which switches on one floor open gates on another.",
    "Explore an abandoned mine, draw a map of its tunnels and report where the supports are weak.",
    "Translate a letter, have it checked by a colleague, and file the original in the archive.",
    "Give each guest of the hotel the room that was promised, although the lift carries only one trolley at a time.",
    "Assemble a bicycle from the parts in four boxes, in the order that the manual prescribes.",
    "Move the instruments of an orchestra from the cellar to the concert hall before the rehearsal.",
    "Find out which of the greenhouse valves must be closed before the pump can be switched off.",
)


def built_in() -> list[Inspiration]:
    """Our own texts."""
    return [inspiration(text, "built-in") for text in BUILT_IN]


def read_inspirations(path: Path, called: str = "inspiration file") -> list[Inspiration]:
    """The texts of a file: of a ``.jsonl`` or ``.ndjson`` file each line (a text, or an object with ``text``), of a
    ``.parquet`` file its column ``text``, of any other each paragraph. Equal texts count once. Raises ``UserError`` for
    a file that cannot be read or holds none; ``called`` is what it is.
    """
    texts: Iterable[str]
    if path.suffix == ".parquet":
        texts = _column(path, called)
    else:
        content = read_text(path, called)
        texts = _lines(content, path) if path.suffix in (".jsonl", ".ndjson") else re.split(r"\n\s*\n", content)
    # A dict keeps the order of the file, which a set would not.
    found = {text.strip(): None for text in texts if text.strip()}
    if not found:
        raise UserError(
            f"the {called} {path} holds no text; expected paragraphs, or JSON lines with `text`",
            ErrorCode.NO_RECORDS,
        )
    return [inspiration(text, path.name) for text in found]


def inspiration(text: str, source: str) -> Inspiration:
    """A text with its id."""
    return Inspiration(inspiration_id=digest("inspiration", text), text=text, source=source)


def _column(path: Path, called: str) -> Iterator[str]:
    try:
        with pq.ParquetFile(path) as file:
            if "text" not in file.schema_arrow.names:
                raise UserError(
                    f"{path} has no column `text`; its columns are {', '.join(file.schema_arrow.names)}\n"
                    "rename the column that holds the texts",
                    ErrorCode.LINE_MALFORMED,
                )
            kind = file.schema_arrow.field("text").type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)):
                raise UserError(
                    f"{path}: the column `text` holds {kind}, expected texts; convert it", ErrorCode.LINE_MALFORMED
                )
            for batch in file.iter_batches(columns=["text"]):
                yield from (str(text) for text in batch["text"].to_pylist() if text is not None)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"the {called} {path} cannot be read ({reason:.120})", ErrorCode.NOT_READABLE) from None


def _lines(content: str, path: Path) -> Iterator[str]:
    for number, line in enumerate(content.split("\n"), 1):
        # JSON texts may hold other line breaks of Unicode, at which ``splitlines`` would cut them.
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of too many digits
            raise UserError(
                f"{path}, line {number}: no JSON ({error}); expected a text or an object", ErrorCode.LINE_MALFORMED
            ) from None
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str) or not is_utf8(text):
            raise UserError(
                f'{path}, line {number}: expected a text, or an object with a `text`, such as {{"text": "…"}}',
                ErrorCode.LINE_MALFORMED,
            )
        yield text
