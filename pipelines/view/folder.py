"""The folder of a view: whether it is one and whole, and how it is replaced without a moment of half a view."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from schemas.errors import UserError

STATIC = Path(__file__).parent / "static"
STAMP = ".agentmill-view.json"
"""What a view was made of. A folder without it is none, and is never written over."""


class View(msgspec.Struct, frozen=True):
    """What a view shows, by number, and its files with their bytes; ``digest`` is of all that it was made of."""

    made_by: Literal["agentmill view"]
    digest: str
    trajectories: int
    pairs: int
    trees: int
    tables: int
    files: dict[str, int]


def view_at(folder: Path) -> View | None:
    """The view in ``folder``, if there is one. Raises ``UserError`` if there is something else."""
    if folder.is_mount():
        raise UserError(f"{folder} is a mount point, which cannot be replaced; give a folder in it: --out FOLDER")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder: --out FOLDER")
    if not folder.exists() or not any(folder.iterdir()):
        return None
    known = {STAMP, "data", *(path.name for path in STATIC.iterdir())}
    other = sorted(path.name for path in folder.iterdir() if path.name not in known)
    try:
        if not other:
            return msgspec.json.decode((folder / STAMP).read_bytes(), type=View)
    except (FileNotFoundError, IsADirectoryError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        other = [STAMP] if (folder / STAMP).exists() else sorted(path.name for path in folder.iterdir())
    raise UserError(
        f"{folder} holds something else than a view ({', '.join(other[:3])}); give another folder: --out FOLDER"
    )


def files_in(folder: Path) -> dict[str, int]:
    """Bytes of each file of a view, by its path in the folder; all but the stamp."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != STAMP)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """An empty folder to write into, which takes the place of ``folder`` at the end; after an error nothing changes.

    Clears what killed builds left beside ``folder``.
    """
    prefix = f".{folder.name}.agentmill-"
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.iterdir():
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    new, old = scratch / "new", scratch / "old"
    new.mkdir()
    try:
        yield new
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
