"""What ``docs/line.md`` and ``docs/start.md`` show is what ``configs/line.yaml`` makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import read_yaml
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table, read_shard
from tests.pages import ROOT, blocks_of
from tests.pipelines.cli.tables import agentmill

RECIPE = ROOT / "configs/line.yaml"
PLACE = re.compile(r"^`(runs/line/[\w/.]+)`:$|^```json\n(.*?)^```", re.DOTALL | re.MULTILINE)
MORE = "…"


def shown() -> list[Any]:
    """Every row of the page with the table it is said to lie in: the one that was named last."""
    place, found = "", []
    for named, text in PLACE.findall((ROOT / "docs/line.md").read_text()):
        place = named or place
        if text:
            found.append(pytest.param(place, text, id=f"{place}-{len(found)}"))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the recipe was run."""
    folder = tmp_path_factory.mktemp("line")
    with chdir(folder):
        assert agentmill("run", RECIPE) == 0
        yield folder


def rows_at(path: Path) -> list[Any]:
    """The rows of a table, those that it dropped, or its manifest, as JSON has them."""
    if path.suffix == ".json":
        return [msgspec.json.decode(path.read_bytes())]
    if path.name == "dropped":
        rows: list[Any] = [row for file in sorted(path.glob("*.parquet")) for row in read_shard(file, Dropped)]
    else:
        rows = list(Table.open(path).rows())
    return [msgspec.to_builtins(row) for row in rows]


def fits(wanted: Any, found: Any) -> bool:
    """Whether ``wanted`` is ``found`` with parts left out: fields of objects, and where it says that there is more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and fits(wanted[key], found[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and fit_in_order(wanted, found)
    if isinstance(wanted, str) and MORE in wanted:
        pattern = ".*".join(re.escape(part) for part in wanted.split(MORE))
        return isinstance(found, str) and re.fullmatch(pattern, found, re.DOTALL) is not None
    return type(wanted) is type(found) and wanted == found


def fit_in_order(wanted: Sequence[Any], found: Sequence[Any]) -> bool:
    if not wanted:
        return not found
    if wanted[0] == MORE:
        return any(fit_in_order(wanted[1:], found[start:]) for start in range(len(found) + 1))
    return bool(found) and fits(wanted[0], found[0]) and fit_in_order(wanted[1:], found[1:])


@pytest.mark.parametrize(("place", "text"), shown())
def test_the_rows_of_the_page_are_in_the_tables(place: str, text: str, run: Path) -> None:
    wanted, rows = msgspec.json.decode(text), rows_at(run / place)
    assert any(fits(wanted, row) for row in rows), msgspec.json.format(msgspec.json.encode(rows), indent=2).decode()


def test_a_row_that_is_not_there_is_found() -> None:
    row = {"a": [1, {"b": "one two"}, 3.0], "c": None}
    for wanted in ({"a": [1, {"b": "one…"}, 3.0]}, {"a": ["…", 3.0]}, {"a": ["…"], "c": None}, {"a": [1, "…", 3.0]}):
        assert fits(wanted, row)
    for wanted in ({"a": [1, {"b": "two…"}, 3.0]}, {"a": [1, {}]}, {"a": ["…", 1]}, {"d": None}, {"a": [True, "…"]}):
        assert not fits(wanted, row)


def test_the_steps_of_the_page_are_those_of_the_recipe() -> None:
    from ruamel.yaml import YAML

    told = [step for text in blocks_of("line.md", "yaml") for step in YAML(typ="safe").load(text)]
    assert told == read_yaml(RECIPE)["steps"]


def test_the_start_shows_the_end_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = blocks_of("start.md", "text")
    assert agentmill("run", RECIPE) == 0
    assert without_seconds(text) in without_seconds(capsys.readouterr().out)


def without_seconds(text: str) -> str:
    """A printed table without its last column and without the widths of the others."""
    return "\n".join(" ".join(line.split()[:6]) for line in text.strip().splitlines())
