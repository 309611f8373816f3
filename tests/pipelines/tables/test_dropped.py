"""A step that drops all its inputs has failed: it says why, at every call, and ``inspect`` shows examples."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.operation import Blamed, Result, Unit
from agentmill.pipelines.engine.run import run_stage
from agentmill.pipelines.tables.dropped import refuse_unused, unused_notes
from agentmill.schemas.errors import NothingUsed
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table
from tests.builders import trajectory
from tests.pipelines.cli.tables import agentmill, write_recipe
from tests.pipelines.engine.operations import Shout
from tests.pipelines.engine.stages import order, task, write_table


def records(folder: Path) -> Path:
    """Five raw records, of which none can be read as ADP."""
    lines = ["", "{", "{", '{"id": "a"}', "[1]"]
    path = folder / "d.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def normalizing(folder: Path) -> Path:
    step = {"operator": "normalize", "data": [str(records(folder))], "dataset": "d", "format": "adp", "as": "runs"}
    return write_recipe(folder, step, data={}, models={})


def test_a_command_whose_inputs_were_all_dropped_fails_with_the_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = normalizing(tmp_path)
    assert agentmill("run", recipe) == 1
    first = capsys.readouterr().err.partition("agentmill: ")[2]
    lines = first.splitlines()
    assert lines[0] == "step runs used none of its 5 inputs; why, with an example each:"
    assert [line.split(",")[0] for line in lines[1:4]] == ["  invalid_json 2", "  blank 1", "  invalid 1"]
    assert lines[1].startswith("  invalid_json 2, as row-000000001: ")
    assert lines[4:] == [
        f"correct that and run with --replace; more examples: agentmill inspect {tmp_path / 'run/runs'} --dropped"
    ]
    assert not (tmp_path / "run/summary.json").exists()


def test_the_next_same_command_fails_the_same_way_and_replace_makes_the_table_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = normalizing(tmp_path)
    assert agentmill("run", recipe) == 1
    first = capsys.readouterr().err.partition("agentmill: ")[2]
    made = (tmp_path / "run/runs/manifest.json").read_bytes()
    assert agentmill("run", recipe) == 1
    again = capsys.readouterr().err
    assert again == f"agentmill: {first}"
    assert (tmp_path / "run/runs/manifest.json").read_bytes() == made
    assert agentmill("run", recipe, "--replace") == 1
    assert "runs: started" in capsys.readouterr().err


def test_inspect_shows_examples_of_what_was_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agentmill("run", normalizing(tmp_path))
    capsys.readouterr()
    assert agentmill("inspect", tmp_path / "run/runs", "--dropped", "--json") == 0
    found = json.loads(capsys.readouterr().out)["dropped"]
    assert [(each["reason"], each["n"], len(each["examples"])) for each in found][:2] == [
        ("invalid_json", 2, 2),
        ("blank", 1, 1),
    ]
    assert json.loads(found[0]["examples"][0]["input"]) == {"files": ["d.jsonl"], "raw": "{", "row": 1}
    assert agentmill("inspect", tmp_path / "run/runs", "--dropped") == 0
    shown = capsys.readouterr().out
    assert "invalid_json, 2 inputs, such as\n  row-000000001 (format): " in shown
    assert agentmill("inspect", tmp_path / "run/runs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == []


def dropping(folder: Path, blamed: Blamed) -> Table:
    """A table whose only input was dropped."""
    rows = write_table(folder / "tasks", [[task(0, "skip")]])
    stage = order(Blaming(blamed), rows, folder / "out")
    return Table(folder / "out", run_stage(stage))


class Blaming(Shout):
    """``Shout`` that blames one party for what it drops."""

    def __init__(self, party: Blamed) -> None:
        super().__init__()
        self._party = party

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        del record
        letter = Dropped(input_id=unit[0], stage=self.name, reason="skipped", blamed=self._party)
        return [Result(input_id=unit[0], dropped=letter)]


def test_a_round_may_choose_none_of_its_inputs(tmp_path: Path) -> None:
    table = dropping(tmp_path, "curation")
    refuse_unused("out", table, in_round=True)
    assert unused_notes(table.manifest) == ["warning: none of its 1 inputs was used (skipped 1)"]
    with pytest.raises(NothingUsed, match="step out used none of its 1 inputs"):
        refuse_unused("out", table)


def test_a_round_that_fails_is_no_choice(tmp_path: Path) -> None:
    with pytest.raises(NothingUsed, match=r" inputs \(skipped 1, as task-0000\)\n"):
        refuse_unused("out", dropping(tmp_path, "policy"), in_round=True)


def test_a_table_without_inputs_dropped_none(tmp_path: Path) -> None:
    table = write_table(tmp_path / "none", [[]])
    refuse_unused("none", table)
    assert unused_notes(table.manifest) == []


def test_an_export_that_can_write_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "runs", [[trajectory("t1", content=[])]], Trajectory)
    for _ in range(2):
        assert agentmill("export", tmp_path / "runs", "--to", "sft", "--out", tmp_path / "rows") == 1
        told = capsys.readouterr().err
        assert "step rows used none of its 1 inputs" in told
        assert "correct that and export to another --out" in told
    assert agentmill("export", tmp_path / "runs", "--to", "llamafactory", "--out", tmp_path / "l", "--pairs") == 1
