"""The quality report: every count on runs whose counts are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.quality import quality
from agentmill.schemas.records.trajectory import CodeAction, Tool, Trajectory
from agentmill.schemas.records.verdict import Quality
from agentmill.schemas.tables import Table
from tests.builders import agent_message, called, instruction, outcome, seen, tool, trajectory
from tests.errors import user_error
from tests.model import tiny_model
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.engine.stages import write_table
from tests.pipelines.operators.steps import run

THOUGHT = {"description": "I look into the box, because the ball may well be in there."}


def row(*content: Any, **fields: Any) -> Quality:
    made = trajectory(content=list(content), **fields)
    return quality(made, lambda texts: [len(text.split()) for text in texts], lambda text: f"{len(text)}")


def thinking(*given: Any, **kwargs: Any) -> Any:
    return msgspec.structs.replace(called(*given, **kwargs), **THOUGHT)


def test_calls_links_and_thoughts_are_counted() -> None:
    counted = row(
        instruction(),
        thinking("move", 1, "a", to="box"),
        seen("ok", 1, tool_call_id="a"),
        called("move", 2, "b", to="door"),
        seen("what?", 2, tool_call_id="nobody", error=True),
        agent_message("Done.", 3),
        tools=[tool("move")],
    )
    counts = (counted.calls, counted.calls_with_thought, counted.calls_unanswered, counted.results_unlinked)
    assert counts == (2, 1, 1, 1)
    assert (counted.errors, counted.turns, counted.messages, counted.items) == (1, 3, 1, 6)
    assert (counted.calls_undeclared, counted.calls_misfit) == (0, 0)
    assert (counted.ending, counted.starts_with_user) == ("message", True)


def test_calls_without_ids_are_answered_by_what_comes_next() -> None:
    code = CodeAction(language="bash", content="ls", turn=1)
    assert row(code, seen("a", 1), code).calls_unanswered == 1
    assert row(code, code, seen("a", 1)).calls_unanswered == 1
    assert row(code).code_languages == ["bash"]


@pytest.mark.parametrize(
    ("kwargs", "parameters", "misfit"),
    [
        ({"to": "box"}, {"type": "object", "required": ["to"]}, 0),
        ({}, {"type": "object", "required": ["to"]}, 1),
        ({"to": 1}, {"type": "object", "properties": {"to": {"type": "string"}}}, 1),
        ({"to": 1}, {"type": "dict"}, 0),
        ({"to": 1}, {"$ref": "http://127.0.0.1:1/schema"}, 0),
    ],
)
def test_arguments_are_held_against_the_declared_tool(kwargs: Any, parameters: Any, misfit: int) -> None:
    counted = row(called("move", 1, "a", **kwargs), tools=[Tool(name="move", parameters=parameters)])
    assert counted.calls_misfit == misfit


def test_undeclared_calls_are_told_only_where_tools_are_declared() -> None:
    assert row(called("fly"), tools=[tool("move")]).calls_undeclared == 1
    assert row(called("fly")).calls_undeclared == 0


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        ([], "nothing"),
        ([agent_message("x")], "message"),
        ([called("move")], "call"),
        ([CodeAction(language="sql", content="x")], "code"),
        ([called("move"), seen("x")], "observation"),
    ],
)
def test_endings(content: list[Any], ending: str) -> None:
    assert row(*content).ending == ending


def test_runs_that_say_the_same_have_one_digest() -> None:
    one, same = row(agent_message("x"), trajectory_id="a"), row(agent_message("x"), trajectory_id="b")
    assert one.content_digest == same.content_digest
    assert one.content_digest != row(agent_message("y")).content_digest
    assert row(called("m", 1, "a", to=1)).content_digest != row(called("m", 1, "a", to="1")).content_digest


def test_the_report_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = "I will first look for the ball in the kitchen, and then bring it to the box by the door."
    german = "Ich werde zuerst in der Küche nach dem Ball suchen und ihn danach zur Kiste bringen."
    runs = [
        trajectory("t1", content=[instruction(), agent_message(talk)], outcome=outcome("success")),
        trajectory("t2", content=[instruction(), agent_message(german)], outcome=outcome("failure")),
        trajectory("t3", content=[instruction(), agent_message(talk)], outcome=outcome("success")),
        trajectory("t4", content=[instruction(), called("move", 1, "a", to="box")], tools=[tool("fly")]),
    ]
    write_table(tmp_path / "runs", [runs], Trajectory)
    run(tmp_path, "quality", "quality", of=["runs"], tokenizer=str(tiny_model()))
    rows: list[Quality] = list(Table.open(tmp_path / "quality").rows())
    assert [each.language for each in rows] == ["en", "de", "en", None]
    assert all(each.tokens for each in rows)
    assert agentmill("inspect", tmp_path / "quality", "--json") == 0
    report = json.loads(capsys.readouterr().out)["quality"]
    expected = {
        "trajectories": 4,
        "duplicates": 1,
        "calls": 1,
        "calls_undeclared": 1,
        "adp_calls_that_fit": 0.0,
        "adp_runs_ending_in_a_message": 0.75,
        "adp_runs_with_thoughts": 0.75,
    }
    assert {name: report[name] for name in expected} == expected
    assert agentmill("inspect", tmp_path / "quality") == 0
    assert "adp_runs_with_thoughts" in capsys.readouterr().out


def test_a_missing_tokenizer_is_told(tmp_path: Path) -> None:
    write_table(tmp_path / "runs", [[trajectory("t1", content=[agent_message("x")])]], Trajectory)
    with user_error("tokenizer-missing", "tokenizer.json"):
        run(tmp_path, "quality", "quality", of=["runs"], tokenizer=str(tmp_path))
