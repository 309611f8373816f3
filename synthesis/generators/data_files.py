"""Data files of generators: YAML tables, and code templates with a YAML head.

A code template is a Python file. Its docstring is the head, in YAML; cells follow, each behind a line ``# %% NAME``:

    \"\"\"
    ask: How many NOUNS hold more than $bound?
    \"\"\"

    # %% solve
    def solve(items, bound):
        return sum(item > bound for item in items)

A cell is the text up to the next one, without the empty lines at its end. Words in capitals are placeholders, see
``fill``. ``catalogue.yaml`` lists the templates of each folder: seeds choose by place, so the order counts.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

import msgspec

from agentmill.schemas.config import parse_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject

CATALOGUE = "catalogue.yaml"
_QUOTES = '"""'
_CELL = re.compile(r"^# %% (\w+)\n", re.MULTILINE)

T = TypeVar("T")


class Template(msgspec.Struct, frozen=True):
    """A code template: where it is from, its head, and the text of its cells by name, each with one line end."""

    origin: str
    head: JsonObject
    cells: dict[str, str]

    def as_type(self, template_type: type[T], bodies: tuple[str, ...] = (), **fields: object) -> T:
        """Head, cells and ``fields`` as a struct that forbids unknown fields; of the cells ``bodies``, function bodies.

        Raises ``UserError`` naming file and key.
        """
        cells = {name: body(text) if name in bodies else text for name, text in self.cells.items()}
        twice = sorted(cells.keys() & self.head.keys())
        if twice:
            raise UserError(
                f"{self.origin}: {twice[0]} is both a key of the head and a cell; keep one", ErrorCode.GIVEN_TWICE
            )
        return convert({**self.head, **cells, **fields}, template_type, self.origin)


def convert(data: object, data_type: type[T], origin: str) -> T:
    """``data`` as a ``data_type``. Raises ``UserError`` naming ``origin`` and the key."""
    try:
        return msgspec.convert(data, data_type)
    except msgspec.ValidationError as error:
        raise UserError(f"{origin}: {error}", ErrorCode.INVALID_VALUE) from None


def data_folder(package: str) -> Traversable:
    """The folder ``data`` of a package."""
    return files(package).joinpath("data")


@cache
def read_table(package: str, name: str) -> JsonObject:
    """The mapping in the YAML file ``data/NAME`` of a package. Raises ``UserError``. Do not change it."""
    return parse_yaml(data_folder(package).joinpath(name).read_text(encoding="utf-8"), f"{package}/data/{name}")


def read_named(package: str, name: str, entry_type: type[T]) -> tuple[T, ...]:
    """The entries of a YAML file that maps names to entries, in order; the key is the field ``name`` of the entry."""
    origin = f"{package}/data/{name}"
    entries = convert(read_table(package, name), dict[str, dict[str, Any]], origin)
    return tuple(convert({"name": key, **entry}, entry_type, f"{origin}, {key}") for key, entry in entries.items())


@cache
def read_template(package: str, path: str) -> Template:
    """The code template ``data/PATH.py`` of a package. Raises ``UserError``."""
    return parse_template(
        data_folder(package).joinpath(f"{path}.py").read_text(encoding="utf-8"), f"{package}/data/{path}.py"
    )


def read_folder(package: str, folder: str) -> dict[str, Template]:
    """The templates of a folder in the order of the catalogue. Raises ``UserError`` where the two differ."""
    names = read_table(package, CATALOGUE).get(folder, [])
    found = {entry.name for entry in data_folder(package).joinpath(folder).iterdir() if entry.name.endswith(".py")}
    wrong = sorted(found ^ {f"{name}.py" for name in names})
    if wrong:
        raise UserError(
            f"{package}/data/{CATALOGUE}: {folder} and its files differ in {', '.join(wrong)}", ErrorCode.RULE_BROKEN
        )
    return {name: read_template(package, f"{folder}/{name}") for name in names}


def parse_template(text: str, origin: str) -> Template:
    """The template in a text. Raises ``UserError``."""
    parts = text.split(_QUOTES, 2)
    if len(parts) != 3 or parts[0]:
        raise UserError(f"{origin}: expected a docstring with YAML at the beginning", ErrorCode.NOT_A_MAPPING)
    before, *pieces = _CELL.split(parts[2])
    if before.strip():
        raise UserError(f"{origin}: expected a line '# %% NAME' before {before.split()[0]!r}", ErrorCode.RULE_BROKEN)
    names = pieces[::2]
    if len(set(names)) < len(names):
        raise UserError(f"{origin}: expected cells of different names, got {', '.join(names)}", ErrorCode.GIVEN_TWICE)
    cells = {name: cell.rstrip("\n") + "\n" for name, cell in zip(names, pieces[1::2], strict=True)}
    head = parse_yaml(parts[1], f"{origin}, head") if parts[1].strip() else {}
    return Template(origin, head, cells)


def body(function: str) -> str:
    """The body of a function that begins in the first line and ends in the last."""
    return textwrap.dedent(function.partition("\n")[2])


def fill(text: str, values: Mapping[str, object]) -> str:
    """``text`` with each placeholder, a whole word, replaced.

    One alone in its line stands for any number of lines: they are indented as it is, and none removes the line.
    """
    if not values:
        return text
    words = "|".join(map(re.escape, values))

    def value(found: re.Match[str]) -> str:
        indent, alone, within = found.groups()
        if within:
            return str(values[within])
        lines = str(values[alone]).rstrip("\n")
        return textwrap.indent(lines, indent) + "\n" if lines else ""

    return re.sub(rf"^( *)({words})\n|\b({words})\b", value, text, flags=re.MULTILINE)


def fill_all(value: Any, values: Mapping[str, Any]) -> Any:
    """A JSON value with the placeholders in its keys and texts replaced; a text that is one becomes its value."""
    match value:
        case dict():
            return {fill(key, values): fill_all(each, values) for key, each in value.items()}
        case list():
            return [fill_all(each, values) for each in value]
        case str():
            return msgspec.to_builtins(values[value]) if value in values else fill(value, values)
    return value
