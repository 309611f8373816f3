"""What is compared of trajectories, tasks and rows of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.benchmark_entries import BenchmarkFields, entry_of, file_entries, sample_of
from agentmill.pipelines.canonical_form import Act
from agentmill.pipelines.leak_features import Entry
from agentmill.pipelines.sources.files import described
from tests.builders import agent_message, called, instruction, seen, task, trajectory


def entries(folder: Path, row: dict[str, Any], **fields: str | None) -> Entry:
    path = folder / "bench.jsonl"
    path.write_text(json.dumps(row))
    (found,) = file_entries(described(path), BenchmarkFields(**fields))  # type: ignore[arg-type]
    return found


def test_a_trajectory() -> None:
    content = [
        instruction("Find it."),
        seen("A room."),
        called("look", 1, where="Box"),
        seen("A key.", 1),
        instruction("Go on."),
        agent_message("no", 2, role="critic"),
        agent_message("Take the key", 2),
    ]
    record = trajectory("t", content=content, system_prompt="Be quick.")
    sample = sample_of(record)
    assert sample.asked == ("Find it.", "Go on.")
    assert sample.prompt == ("Be quick.", "Find it.", "Go on.", "A room.")
    assert sample.shown == ("A room.", "look", '{"where":"Box"}', "A key.", "no", "Take the key")
    assert sample.acts == (Act("look", ("box",), call=True), Act("take", ("key",), call=False))
    assert (sample.scene, sample.stated) == (("A room.",), False)
    entry = entry_of("b", record)
    assert (entry.scene, entry.stated) == (("A room.",), False)
    assert (entry.entry_id, entry.task_id, entry.instruction) == ("t", "task1", "Find it.")
    assert entry.answers == ("box", "Take the key")
    assert entry_of("b", trajectory("t", content=[])).instruction == ""


def test_a_task() -> None:
    record = task("t", instruction="Find it.", gold=[called("look", where="Box"), called("rest")])
    sample = sample_of(record)
    assert (sample.asked, sample.prompt, sample.shown) == (("Find it.",), ("Find it.",), ("box",))
    assert sample.acts == (Act("look", ("box",), call=True),)
    assert sample_of(task("t")).acts == ()
    stated = sample_of(task("t", initial_state={"rooms": [["hall", 2]]}))
    assert (stated.scene, stated.stated) == (('rooms "hall" 2',), True)


@pytest.mark.parametrize(
    "actions",
    [
        [{"name": "look", "arguments": {"where": "Box"}}, {"name": "rest"}],
        [{"name": "look", "kwargs": {"where": "Box"}}],
        [{"type": "function", "function": {"name": "look", "arguments": '{"where": "Box"}'}}],
        '[{"function": "look", "arguments": {"where": "Box"}}]',
    ],
)
def test_actions_of_a_row(actions: Any, tmp_path: Path) -> None:
    found = entries(
        tmp_path, {"q": "Find it.", "a": ["Yes.", 3], "gold": actions}, instruction="q", answer="a", actions="gold"
    )
    assert found.acts == (Act("look", ("box",), call=True),)
    assert found.answers == ("Yes.", "3", "box")
    assert (found.benchmark, found.entry_id, found.task_id) == ("bench.jsonl", "row 1", None)


def test_chat_messages_and_nested_fields(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Find it."}]
    found = entries(tmp_path, {"task": {"messages": messages, "id": 7}}, instruction="task.messages", id="task.id")
    assert (found.instruction, found.entry_id, found.task_id) == ("Find it.", "7", "7")


def test_commands_and_no_instruction(tmp_path: Path) -> None:
    found = entries(tmp_path, {"gold": ["go to attic"]}, instruction=None, actions="gold")
    assert found.instruction == ""
    assert found.acts == (Act("go", ("attic",), call=False),)
