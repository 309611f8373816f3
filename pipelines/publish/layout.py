"""How tables become configurations and splits, so that ``load_dataset`` and the Hub's viewer need no code.

Tables go up as they are. Where every file of a table holds rows of one split only, its files are told apart by split;
a table whose files mix splits is one split, ``mixed``, and its column ``split`` tells the rows apart. Rows that tell no
split are ``unsplit``, for nothing says that they are to be trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipelines.publish.material import Published
from pipelines.publish.survey import Survey
from schemas.errors import UserError
from schemas.record import JsonObject

UNSPLIT, MIXED = "unsplit", "mixed"
TRAINING_ROWS = ("SftRow", "PreferenceRow", "UnpairedRow", "ScorerRow", "PromptRow", "TextRow")
ORDER = (*TRAINING_ROWS, "Trajectory", "Task", "EnvironmentSpec")
"""Which record is shown first; that of the first table is the default configuration."""

SIZES = [(10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
         (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B")]  # fmt: skip


def in_order(tables: Sequence[Published]) -> list[Published]:
    """The tables in the order they are told: training rows, trajectories, and what they were made of."""
    places = {record: place for place, record in enumerate(ORDER)}
    return sorted(tables, key=lambda each: (places.get(each.table.manifest.record, len(ORDER)), each.name))


def splits(name: str, survey: Survey) -> Mapping[str, str | list[str]]:
    """The files of a table by split, as paths or a pattern; none where it has no rows."""
    held = {file: found for file, found in survey.file_splits.items() if found}
    values = {value for found in held.values() for value in found}
    if not values:
        return {}
    if len(values) == 1:
        return {split_name(values.pop()): f"{name}/data/*.parquet"}
    if any(len(found) > 1 for found in held.values()):
        return {MIXED: f"{name}/data/*.parquet"}
    told: dict[str, list[str]] = {}
    for file, (value,) in held.items():
        told.setdefault(split_name(value), []).append(f"{name}/data/{file}")  # two may be spelt as one
    return dict(sorted(told.items()))


def split_name(value: str) -> str:
    """A split as ``datasets`` may call it: letters, digits and ``_``, and not its word for all of them."""
    name = re.sub(r"\W+", "_", value).strip("_") or UNSPLIT
    return f"{name}_" if name.lower() == "all" else name


def configs(tables: Sequence[Published], surveys: Mapping[str, Survey]) -> list[JsonObject]:
    """The entry ``configs`` of the card's metadata, the default first.

    Raises ``UserError`` where two tables would be one configuration.
    """
    names = [each.config for each in tables]
    for name in names:
        if names.count(name) > 1:
            same = " and ".join(each.name for each in tables if each.config == name)
            raise UserError(f"{same} would both be the configuration {name}; name them apart: --table NAME=TABLE")
    found: list[JsonObject] = []
    for each in in_order(tables):
        files = splits(each.name, surveys[each.name])
        if files:
            named = [{"split": split, "path": path} for split, path in files.items()]
            found.append({"config_name": each.config, "data_files": named, **({} if found else {"default": True})})
    return found


def size_category(rows: int) -> str:
    """The Hub's name for a number of rows."""
    return next((name for limit, name in SIZES if rows < limit), "10B<n<100B")
