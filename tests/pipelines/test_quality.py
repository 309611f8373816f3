"""The quality report: every count on runs whose counts are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.annotations import COLUMNS, check_counts
from agentmill.pipelines.quality import quality
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.records.trajectory import CodeAction, Tool, Trajectory
from agentmill.schemas.records.verdict import Quality
from agentmill.schemas.tables import Table, read_shard
from tests.builders import agent_message, called, instruction, outcome, seen, tool, trajectory
from tests.errors import shows, user_error
from tests.model import tiny_model
from tests.pipelines.cli.tables import agentmill
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import run, stage
from tests.schemas.test_arrow_versions import GOLDEN

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


REFUSAL = "I'm sorry, but I can't help with that."


def test_refusals() -> None:
    counted = row(instruction(), agent_message(REFUSAL), agent_message("Done.", 2))
    assert (counted.refusals, counted.refused) == (1, False)
    counted = row(instruction(), agent_message(REFUSAL), called("move", 2))
    assert (counted.refusals, counted.refused) == (1, True)
    assert (row().refusals, row().refused) == (0, False)
    assert row(instruction(REFUSAL)).refusals == 0


def test_the_longest_text_in_tokens() -> None:
    counted = row(instruction("one two three"), agent_message("one"), system_prompt="a b")
    assert (counted.tokens, counted.longest_text) == (6, 3)
    without = quality(trajectory(), None, lambda text: "en")
    assert (without.tokens, without.longest_text, without.secrets, without.paths) == (None, None, None, None)


def test_sensitive_data_are_counted_where_asked(tmp_path: Path) -> None:
    token = "ghp_" + "aB3d" * 9
    asked = [instruction(f"Use {token}, {token} or X_API_KEY={'7f3a9c' * 4}."), agent_message("See /home/jane/x.")]
    described = Tool(name="mail", description="Writes to jane@firm.org", parameters={})
    runs = [trajectory("t1", content=asked), trajectory("t2", content=[instruction("b@firm.org")], tools=[described])]
    write_table(tmp_path / "runs", [runs, [trajectory("t3")]], Trajectory)
    for name, sensitive in (("found", True), ("not", False)):
        run(tmp_path, "quality", name, of="runs", sensitive=sensitive)
    counted = {name: [(each.secrets, each.personal, each.paths) for each in rows_of(tmp_path / name)] for name in
               ("found", "not")}  # fmt: skip
    assert counted == {"found": [(2, 0, 1), (0, 2, 0), (0, 0, 0)], "not": [(None, None, None)] * 3}
    where = [{"quality": "secrets", "at_most": 0}, {"quality": "personal", "at_most": 0}]
    manifest = run(tmp_path, "filter", "clean", of="runs", quality="found", where=where)
    assert [each.kept for each in rows_of(tmp_path / "clean")] == [False, False, True]
    assert manifest.metrics == {"kept": 1, "left_out.personal": 1, "left_out.secrets": 1}


def test_windows_of_length_language_and_refusals(tmp_path: Path) -> None:
    english = "I will first look for the ball in the kitchen, and then bring it to the box by the door."
    german = "Ich werde zuerst in der Küche nach dem Ball suchen und ihn danach zur Kiste bringen."
    messages = {
        "a": english,
        "b": german,
        "c": english + f" {english}" * 9,
        "d": REFUSAL + " It would harm people, as I see it.",
    }
    runs = [trajectory(name, content=[agent_message(text)]) for name, text in messages.items()]
    write_table(tmp_path / "runs", [runs], Trajectory)
    run(tmp_path, "quality", "counts", of="runs", tokenizer=str(tiny_model()))
    where = [
        {"quality": "tokens", "at_least": 5, "at_most": 120},
        {"quality": "longest_text", "at_most": 110},
        {"quality": "language", "equals": "en"},
        {"quality": "refused", "equals": False},
    ]
    run(tmp_path, "filter", "kept", of="runs", quality="counts", where=where)
    assert {each.trajectory_id: each.reason for each in rows_of(tmp_path / "kept")} == {
        "a": None,
        "b": "language",
        "c": "tokens",
        "d": "refused",
    }


def test_a_count_that_was_not_made_is_reported_before_the_step(tmp_path: Path) -> None:
    write_table(tmp_path / "runs", [[trajectory("t1")]], Trajectory)
    run(tmp_path, "quality", "counts", of="runs")
    inputs = {"quality": [Table.open(tmp_path / "counts")]}
    for name, hint in (("tokens", "tokenizer: FOLDER"), ("secrets", "sensitive: true")):
        step = stage("filter", of="runs", quality="counts", where=[{"quality": name, "at_most": 9}])
        with user_error("annotation-missing", f"has no {name}", hint):
            check_counts(step, inputs)
    check_counts(stage("filter", of="runs", quality="counts", where=[{"quality": "errors", "at_most": 9}]), inputs)


def test_a_recipe_reports_a_count_that_was_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "runs", [[trajectory("t1")]], Trajectory)
    steps = [
        {"operator": "quality", "of": "runs", "as": "counts"},
        {"operator": "filter", "of": "runs", "quality": "counts", "where": [{"quality": "personal", "at_most": 0}]},
    ]
    recipe = {"name": "r", "data": {"runs": str(tmp_path / "runs")}, "run_dir": str(tmp_path / "run"), "steps": steps}
    (tmp_path / "r.yaml").write_text(dump_yaml(recipe))
    assert agentmill("run", tmp_path / "r.yaml") == 2
    assert shows(capsys.readouterr().err, "annotation-missing", "sensitive: true")


def test_tables_of_schema_1_0_lack_the_newer_counts() -> None:
    (old,) = read_shard(GOLDEN / "release-1.0/Quality.parquet", Quality, COLUMNS["quality"])
    assert (old.tokens, old.refusals, old.refused, old.secrets) == (3, None, None, None)
