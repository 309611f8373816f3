"""Which files a data set is, and what kind each is."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from schemas.errors import UserError, near_match
from schemas.raw import RawKind

KINDS: dict[str, RawKind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".traj": "json",
    ".parquet": "parquet",
}
"""The kind of a file, by its suffix."""

_PICKLES = {".pkl", ".pickle", ".pt", ".bin"}


class RawFile(NamedTuple):
    """A file as it was found; equal for the same bytes in the same place."""

    path: str
    kind: RawKind
    size: int
    modified_ns: int


def find(patterns: Sequence[str], whole: bool = False) -> list[RawFile]:
    """The files of paths, folders and globs (``**`` too), by pattern and then by name; none twice.

    ``whole``: a JSON file that is a list is one record, and not a list of them.
    Raises ``UserError`` if a pattern matches nothing or a file is of a kind that is not read.
    """
    found: dict[str, RawFile] = {}
    for pattern in patterns:
        paths = [path for path in _matches(pattern) if path.is_file() and not path.name.startswith(".")]
        if not paths:
            raise UserError(f"no file matches {pattern}.{_nearest(pattern)} Expected a file, a folder or a glob")
        for path in paths:
            file = described(path)
            if whole and file.kind == "json":
                file = file._replace(kind="document")
            found.setdefault(file.path, file)
    if len({file.kind for file in found.values()}) > 1:
        kinds = " and ".join(sorted({file.kind for file in found.values()}))
        raise UserError(f"the files {', '.join(patterns)} are of several kinds ({kinds}); normalize one kind at a time")
    return list(found.values())


def described(path: Path) -> RawFile:
    """One file. Raises ``UserError`` if it is of a kind that is not read."""
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise UserError(f"{path} may be a pickle, which can run code when it is loaded; export it as JSON lines first")
    if suffix not in KINDS:
        raise UserError(f"{path} ends in {suffix or 'nothing'}; expected one of {', '.join(KINDS)} (not compressed)")
    state = path.stat()
    return RawFile(str(path.resolve()), KINDS[suffix], state.st_size, state.st_mtime_ns)


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.suffix.lower() in KINDS)
    if path.exists():
        return [path]
    return sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207  a pattern may be absolute


def _nearest(pattern: str) -> str:
    folder = Path(pattern).parent
    return near_match(Path(pattern).name, [entry.name for entry in folder.iterdir()]) if folder.is_dir() else ""
