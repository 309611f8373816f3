"""What a tuned model was trained on: the table of its rows, and those of the tuned models that it started from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pipelines.publish.licences import SourceCount, sources_of
from pipelines.publish.material import Published, opened, reachable, with_origins
from pipelines.publish.runs import run_of
from pipelines.stages.training import RECORD
from schemas.errors import UserError
from schemas.hub import is_address
from schemas.tables import Table


class Settings(msgspec.Struct, frozen=True):
    """What we read of the settings of a training: where its rows and its base lay."""

    rows: str = ""
    model: str = ""


class Trained(msgspec.Struct, frozen=True):
    """What we read of the record of a training; older ones may say less."""

    rows_digest: str | None = None
    settings: Settings = Settings()


def trainings(folder: Path) -> Iterator[tuple[Path, Trained]]:
    """The folder and training of a model, and those of its bases as far as these lie here. Raises ``UserError``."""
    seen: set[Path] = set()
    while (path := folder / RECORD).is_file() and folder.resolve() not in seen:
        seen.add(folder.resolve())
        try:
            trained = msgspec.json.decode(path.read_bytes(), type=Trained)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}); run its training again") from None
        yield folder, trained
        folder = Path(trained.settings.model or folder)


def rows_of(folder: Path, trained: Trained) -> Table | None:
    """The table that a model was trained on, by its digest: in its run, or where the training was told to look."""
    rows = trained.settings.rows
    told = [] if not rows or is_address(rows) else [Path(rows)]
    near = [table for place in [folder, *told] for table in reachable(run_of(place), set())]
    near += filter(None, map(opened, told))
    return next((table for table in near if table.digest == trained.rows_digest), None)


def sources(folder: Path) -> tuple[list[SourceCount], int]:
    """The sources of all rows that made the model in ``folder``, and of how many trainings the rows are not here."""
    tables = [rows_of(*each) for each in trainings(folder)]
    found: dict[SourceCount, None] = {}
    for table in filter(None, tables):
        material = with_origins([Published(table.folder.name, table)], run_of(table.folder))
        found.update(dict.fromkeys(sources_of(material)))
    return list(found), tables.count(None)
