"""Which files a data set is, here or on the Hub, and what kind each is."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple

from agentmill.pipelines.sources import hub
from agentmill.pipelines.sources.reading import decoded, opened
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.records.raw_input import IN_FOLDERS, KINDS, RawKind

LONGEST_FIRST_LINE = 1 << 24
"""Bytes of a JSON file that are looked at to find out whether it is JSON lines."""

_PICKLES = {".pkl", ".pickle", ".pt", ".bin"}


class RawFile(NamedTuple):
    """A file as it was found; equal for the same bytes in the same place. ``path`` is an address for one on the Hub."""

    path: str
    kind: RawKind
    size: int
    modified_ns: int


def find(patterns: Sequence[str], whole: bool = False, selection: hub.Selection | None = None) -> list[RawFile]:
    """The files of paths, folders, globs (``**`` too) and addresses, by pattern and then by name; none twice.

    ``whole``: a JSON file that is a list is one record, and not a list of them. ``selection``: of data sets on the Hub.
    Raises ``UserError`` if a pattern matches nothing or a file is of a kind that is not read.
    """
    found: dict[str, RawFile] = {}
    for pattern in patterns:
        there = _on_hub(pattern, selection or hub.Selection()) if hub.is_address(pattern) else _here(pattern)
        for file in there:
            if whole and file.kind == "json":
                file = file._replace(kind="document")
            found.setdefault(file.path, file)
    files = list(found.values())
    if {file.kind for file in files} == {"json", "jsonl"}:
        # One object on one line is a file of both kinds.
        files = [file._replace(kind="jsonl") if _is_one_line(file) else file for file in files]
    examples = {file.kind: file.path for file in reversed(files)}
    if len(examples) > 1:
        kinds = " and ".join(f"{kind}, such as {path}" for kind, path in sorted(examples.items()))
        raise UserError(
            f"the files {', '.join(patterns)} are of several kinds ({kinds}); normalize one kind at a time",
            ErrorCode.KINDS_MIXED,
        )
    return files


def not_read(patterns: Sequence[str]) -> dict[str, list[str]]:
    """By folder that is named as a whole: what is in it and is not read, other kinds of files and folders; and by other
    patterns the folders that they match.

    Hidden files are left out.
    """
    folders = [Path(pattern) for pattern in patterns if not hub.is_address(pattern) and Path(pattern).is_dir()]
    found = {
        str(folder): sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in folder.iterdir()
            if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix.lower() not in IN_FOLDERS)
        )
        for folder in folders
    }
    for pattern in patterns:
        if not hub.is_address(pattern) and not Path(pattern).is_dir():
            found[pattern] = [f"{path}/" for path in _matches(pattern) if path.is_dir() and "**" not in pattern]
    return {folder: names for folder, names in found.items() if names}


def described(path: Path) -> RawFile:
    """One file. Raises ``UserError`` if it is of a kind that is not read."""
    kind, state = kind_of(str(path)), path.stat()
    # Absolute: a worker may be started in another folder, and two ways to one file are one file.
    return RawFile(str(path.resolve()), kind, state.st_size, state.st_mtime_ns)


def kind_of(path: str) -> RawKind:
    """The kind of a file, here or on the Hub. Raises ``UserError`` if it is not read.

    It is known by its name, but for JSON lines that are called ``.json``: there lines are JSON, and not the whole.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix in _PICKLES:
        raise UserError(
            f"{path} may be a pickle, which can run code when it is loaded; export it as JSON lines first",
            ErrorCode.MAY_RUN_CODE,
        )
    if suffix not in KINDS:
        raise UserError(
            f"{path} ends in {suffix or 'nothing'}; expected one of {', '.join(KINDS)} (not compressed)",
            ErrorCode.FILE_KIND_UNKNOWN,
        )
    return "jsonl" if suffix == ".json" and _has_lines(path) else KINDS[suffix]


def _has_lines(path: str) -> bool:
    with opened(path) as file:
        first, *others = list(islice(_filled_lines(file), 3)) or [b""]
        # Where the first line is damaged, those behind it are objects all the same.
        lines = [first] if isinstance(decoded(first), dict) else others if first.lstrip().startswith(b"{") else []
        return bool(others and lines) and all(isinstance(decoded(line), dict) for line in lines)


def _filled_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not blank, up to the first that is too long."""
    while line := file.readline(LONGEST_FIRST_LINE):
        if not line.isspace():
            yield line
        if len(line) == LONGEST_FIRST_LINE:
            return


def _is_one_line(file: RawFile) -> bool:
    with opened(file.path) as lines:
        return isinstance(decoded(next(_filled_lines(lines), b"")), dict)


def _here(pattern: str) -> list[RawFile]:
    matched = _matches(pattern)
    broken = [path for path in matched if path.is_symlink() and not path.exists()]
    if broken:
        raise UserError(
            f"{broken[0]} is a link to {broken[0].readlink()}, which is not there; copy the file itself, or remove the"
            " link",
            ErrorCode.FILE_MISSING,
        )
    paths = [path for path in matched if path.is_file() and (not path.name.startswith(".") or matched == [path])]
    if not paths and Path(pattern).is_dir():
        raise _none_in(Path(pattern))
    if not paths:
        raise UserError(
            f"no file matches {pattern}.{_nearest(pattern)} Expected a file, a folder or a glob",
            ErrorCode.NO_FILE_MATCHES,
        )
    return [described(path) for path in paths]


def _none_in(folder: Path) -> UserError:
    """The error for a folder without a file that is read where the folder alone is named."""
    tables = any(entry.suffix.lower() == ".csv" for entry in folder.iterdir())
    advice = f"a CSV file itself, such as {folder}/*.csv" if tables else f"the files, such as {folder}/**/*.jsonl"
    return UserError(
        f"{folder} has no file that is read from a folder ({', '.join(sorted(IN_FOLDERS))}); name {advice}",
        ErrorCode.NO_FILE_MATCHES,
    )


def _on_hub(text: str, selection: hub.Selection) -> list[RawFile]:
    paths = hub.data_files(hub.parse(text), selection)
    return [RawFile(path, kind_of(path), hub.size(path), modified_ns=0) for path in paths]


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IN_FOLDERS)
    if path.exists() or path.is_symlink():
        return [path]
    return sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207  a pattern may be absolute


def _nearest(pattern: str) -> str:
    folder = Path(pattern).parent
    return near_match(Path(pattern).name, [entry.name for entry in folder.iterdir()]) if folder.is_dir() else ""
