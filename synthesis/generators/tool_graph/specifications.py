"""Specifications of tools in files and folders: which format each is of, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from agentmill.schemas.config import parse_document
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.text_file import read_text
from agentmill.synthesis.generators.data_files import data_folder
from agentmill.synthesis.generators.tool_graph.function_tools import function_list, read_functions
from agentmill.synthesis.generators.tool_graph.given_tools import Specification
from agentmill.synthesis.generators.tool_graph.openapi import is_openapi, read_openapi

BUNDLED = "bundled:"
SUFFIXES = (".json", ".yaml", ".yml")
MOST_BYTES = {".json": 16 * 2**20, ".yaml": 2 * 2**20, ".yml": 2 * 2**20}
"""The largest file, by suffix: YAML is read slowly."""

MOST_TOOLS = 2_000
"""Tools of one step: the edges between them may grow with the square of their number."""

EXPECTED = "an OpenAPI 3 document, or a list of function tools, each with a name and a JSON Schema of its parameters"


def read_specifications(paths: Sequence[str]) -> list[Specification]:
    """The specifications that paths name: files, folders of files, or ``bundled:NAME``, in order.

    Raises ``UserError`` for what is missing, given twice, too large, or no specification, and if there are no tools or
    more than ``MOST_TOOLS``.
    """
    found: dict[str, Specification] = {}
    for path in paths:
        for place, file in _files(path):
            if place in found:
                raise UserError(f"{place} is given twice in `specs`\nleave one of them out", ErrorCode.GIVEN_TWICE)
            found[place] = _specification(file)
    check_number(list(found.values()), ", ".join(paths))
    return list(found.values())


def check_number(found: Sequence[Specification], called: str) -> None:
    """Raises ``UserError`` if there are no tools at all, or more than ``MOST_TOOLS``."""
    n = sum(len(each.tools) + len(each.unusable) for each in found)
    if not n:
        raise UserError(f"{called} holds no tool\nname {EXPECTED}", ErrorCode.NO_RECORDS)
    if n > MOST_TOOLS:
        raise UserError(
            f"{called} holds {n:,} tools; a step takes {MOST_TOOLS:,} at most\nsplit them over several steps",
            ErrorCode.NUMBER_OUT_OF_RANGE,
        )


def bundled() -> dict[str, Traversable]:
    """The specifications that the package ships, by name."""
    files = data_folder(__package__).joinpath("specifications").iterdir()
    return {file.name.partition(".")[0]: file for file in files if file.name.endswith(SUFFIXES)}


def _files(path: str) -> Iterator[tuple[str, Path | Traversable]]:
    """Each file that a path names, with what tells it from others."""
    if path.startswith(BUNDLED):
        name, known = path.removeprefix(BUNDLED), bundled()
        if name not in known:
            raise UserError(
                f"there is no specification {path}; there are {', '.join(sorted(known))}.{near_match(name, known)}",
                ErrorCode.UNKNOWN_NAME,
            )
        yield path, known[name]
        return
    place = Path(path)
    if not place.is_dir():
        yield str(place.resolve()), place
        return
    inside = sorted(each for each in place.rglob("*") if each.suffix in SUFFIXES and each.is_file())
    if not inside:
        raise UserError(
            f"the folder {path} holds no .json or .yaml file\nname {EXPECTED}, or a folder of such files",
            ErrorCode.NO_FILE_MATCHES,
        )
    yield from ((str(each.resolve()), each) for each in inside)


def _specification(file: Path | Traversable) -> Specification:
    document = _document(file)
    if is_openapi(document):
        return read_openapi(document, file.name)
    entries = function_list(document)
    if entries is None:
        raise UserError(f"{file} is no specification of tools\nexpected {EXPECTED}", ErrorCode.FILE_KIND_UNKNOWN)
    return read_functions(entries, file.name)


def _document(file: Path | Traversable) -> Any:
    suffix = f".{file.name.rpartition('.')[2]}"
    if suffix not in SUFFIXES:
        raise UserError(f"{file} is no .json or .yaml file\nexpected {EXPECTED}", ErrorCode.FILE_KIND_UNKNOWN)
    if isinstance(file, Path) and file.is_file() and file.stat().st_size > MOST_BYTES[suffix]:
        raise UserError(
            f"{file} is larger than {MOST_BYTES[suffix] // 2**20} MiB, the most for {suffix}\n"
            "name a part of it, or write YAML as JSON",
            ErrorCode.FILE_TOO_LARGE,
        )
    text = read_text(file, "specification") if isinstance(file, Path) else file.read_text(encoding="utf-8")
    if suffix != ".json":
        return parse_document(text, str(file))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}, line {error.lineno}: no JSON ({error.msg})\nexpected {EXPECTED}", ErrorCode.DAMAGED_FILE
        ) from None
    except RecursionError:
        raise UserError(
            f"{file}: its values are nested too deep\nexpected {EXPECTED}", ErrorCode.DAMAGED_FILE
        ) from None
