"""Whose a folder is: one that a table is to be written into, or to be removed from, must hold nothing but our files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pipelines.engine.operation import SIDES
from schemas.errors import UserError
from schemas.folders import entries
from schemas.manifest import MANIFEST_NAME, TEMPORARY_FOLDER

WORK = ".work"
SEEDS = ".seeds"
CLEARING = f"{WORK}/clearing"
"""A file that is there while a table is being removed."""

_SIDE = rf"(?:(?:{'|'.join(SIDES)})/)?"
_SHARD = rf"{_SIDE}(?:data|dropped)/part-\d+\.parquet"
_SCRATCH = rf"{_SIDE}(?:{'|'.join(map(re.escape, (WORK, SEEDS, TEMPORARY_FOLDER)))})/.*"
_OURS = re.compile(rf"{_SIDE}{re.escape(MANIFEST_NAME)}|{_SHARD}|{_SCRATCH}", re.DOTALL)


def check_ours(folder: Path) -> None:
    """Raises ``UserError`` unless ``folder`` is missing, empty, or a table of ours, finished or not, and no more.

    A table has a manifest or the plan of an attempt. A link is never ours, wherever it leads.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; expected the folder of a table: choose another run_dir, or remove it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; expected the folder of a table: choose another run_dir, or remove it")
    begun = (folder / MANIFEST_NAME).exists() or (folder / CLEARING).exists() or any(plans(folder))
    for name in entries(folder):
        if not _OURS.fullmatch(name) or not (begun or re.fullmatch(_SCRATCH, name)):
            raise UserError(
                f"{folder} holds {name!r}, which is no part of a table that was begun there\n"
                "nothing was changed: choose another run_dir or name (as: …), or move what is there"
            )


def plans(folder: Path) -> Iterator[Path]:
    """The plans of attempts at the table in ``folder``; earlier versions had one right in the folder of attempts."""
    yield from (folder / WORK).glob("*/plan.json")
    yield from (folder / WORK).glob("plan.json")
