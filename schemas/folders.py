"""Removing folders that we made, and nothing that somebody else put there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from schemas.errors import UserError


def entries(folder: Path) -> Iterator[str]:
    """The files and links below ``folder``, by their paths in it. Links are not followed."""
    for path, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(path) / name).is_symlink()]
        for name in sorted([*links, *files]):
            yield (Path(path) / name).relative_to(folder).as_posix()


def remove(folder: Path, kind: str, is_ours: Callable[[list[str]], bool]) -> None:
    """Remove ``folder``, a ``kind`` that we made, if there is one.

    ``is_ours`` tells by the paths in it. Raises ``UserError`` for a link, a file, or a folder that is not ours; nothing
    is removed then. An empty folder is anybody's.
    """
    found = list(entries(folder)) if folder.is_dir() and not folder.is_symlink() else None
    if found is None and not folder.is_symlink() and not folder.exists():
        return
    if found is None or (found and not is_ours(found)):
        raise UserError(
            f"{folder} is to be removed and is no {kind} of ours\n"
            "nothing was changed: move it, or choose another place for what is made"
        )
    shutil.rmtree(folder)
