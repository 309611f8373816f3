"""What a report is made of: sections of words, pictures, tables and examples."""

from __future__ import annotations

import msgspec

from pipelines.dropped import Reason
from pipelines.report.pictures import Picture
from pipelines.summary import Row


class Sheet(msgspec.Struct, frozen=True):
    """A table with its caption."""

    caption: str
    columns: list[str]
    rows: list[Row]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the page under a heading; ``anchor`` is its id there."""

    anchor: str
    title: str
    words: list[str] = []
    pictures: list[Picture] = []
    sheets: list[Sheet] = []
    reasons: list[Reason] = []
