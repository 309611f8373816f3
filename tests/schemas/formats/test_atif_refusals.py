"""ATIF documents that break its rules: they are read and remarked on, or have a reason why they cannot be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.formats.atif.format import Atif
from tests.builders import trajectory
from tests.schemas.formats.atif_rules import broken
from tests.schemas.formats.atif_steps import STRUCTURE, acts, answers, atif, read, user
from tests.schemas.formats.leaves import held, leaves


@pytest.mark.parametrize(
    ("document", "remarks"),
    [
        (atif(user(), {**acts("x"), "step_id": 7}), {"step_id_gap": 1}),
        (atif(user(metrics={"prompt_tokens": 1})), {"agent_only_field": 1}),
        (atif(acts("x", llm_call_count=0, metrics={"prompt_tokens": 1})), {"metrics_without_call": 1}),
        (atif({"source": "robot", "message": "x"}), {"unknown_role": 1}),
        (atif(acts("x", ("a", "f"), observation=answers(("z", "?")))), {"orphan_result": 1, "unanswered_call": 1}),
        (atif(acts("x", ("a", "f"), observation=answers(("a", "1"), ("a", "2")))), {"duplicate_result": 1}),
        (atif(acts("x", ("a", "f")), acts("y", observation=answers(("a", "1")))), {"result_of_other_step": 1}),
        (atif(acts("x", ("a", "f"), ("a", "g"))), {"repeated_call_id": 1, "unanswered_call": 2}),
    ],
)
def test_what_breaks_the_rules_is_read_and_remarked_on(document: dict[str, Any], remarks: dict[str, int]) -> None:
    found = read(document)
    assert found.remarks == remarks
    assert leaves(document["steps"], STRUCTURE) <= held([found.trajectory])
    assert broken(Atif().write(found.trajectory).document) == []


def test_a_message_of_a_part_that_atif_has_no_words_for_is_refused() -> None:
    image = {"type": "image", "source": {"media_type": "image/bmp", "path": "p.bmp"}}
    shown = {"source": "user", "message": [{"type": "text", "text": "t"}, image]}
    found = read(atif(shown, acts("x")))
    with pytest.raises(FormatError) as error:
        Atif().write(found.trajectory)
    assert error.value.reason == "unsayable_part"


def test_the_id_of_a_call_may_be_anything() -> None:
    odd = atif(user(), {**acts("x"), "tool_calls": [{"tool_call_id": {"a": 1}, "function_name": "f", "arguments": {}}]})
    written = Atif().write(read(odd).trajectory).document
    assert written["steps"][1]["tool_calls"][0]["tool_call_id"] == {"a": 1}


@pytest.mark.parametrize(
    ("path", "remark"),
    [
        ("images/a.png", None),
        ("https://a/b.png", None),
        ("data:image/png;base64,AA", None),
        ("/etc/passwd", "unsafe_image_path"),
        ("a/../../b.png", "unsafe_image_path"),
        ("..\\b.png", "unsafe_image_path"),
        ("C:\\b.png", "unsafe_image_path"),
        ("file:///a.png", "unsafe_image_path"),
        ("", "missing_image_path"),
    ],
)
def test_images_that_nobody_should_open_are_remarked_on(path: str, remark: str | None) -> None:
    part = {"type": "image", "source": {"media_type": "image/png", "path": path}}
    assert read(atif(user([part]))).remarks == ({remark: 1} if remark else {})
    item = {"class_": "image_observation", "content": path, "source": "user"}
    found = Adp().read(msgspec.json.encode({"id": "i", "content": [item]}), Origin("demo"))
    assert found.remarks == ({remark: 1} if remark else {})


def test_undeclared_tools_are_remarked_on() -> None:
    tools = [{"type": "function", "function": {"name": "g", "parameters": {}}}]
    document = atif(acts("x", ("a", "f"), observation=answers(("a", "1"))))
    document["agent"]["tool_definitions"] = tools
    found = read(document)
    assert found.remarks == {"undeclared_tool": 1}
    assert Atif().write(found.trajectory).document == document


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "unknown_version"),
        (atif(user(), schema_version="ATIF-v2.0"), "unknown_version"),
        (atif(user(), schema_version="ATIF-v1.9"), "unknown_version"),
        (atif(user(), schema_version=["x"]), "unknown_version"),
        (atif(), "empty"),
        (atif(user(), steps="x"), "invalid"),
        (atif(user(), steps=["x"]), "invalid"),
        (atif(user(), agent="x"), "invalid"),
        (atif({"message": "x"}), "invalid"),
        (atif(acts("x", tool_calls=[{"tool_call_id": "a", "function_name": "f", "arguments": "{}"}])), "invalid"),
        (atif(acts("x", tool_calls="x")), "invalid"),
        (atif(acts("x", observation={"results": ["x"]})), "invalid"),
        (atif(user(), subagent_trajectories=["x"]), "invalid"),
        (atif(user(), subagent_trajectories=[{}]), "unknown_version"),
    ],
)
def test_broken_documents_have_a_reason(document: Any, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(document)
    assert caught.value.reason == reason


def test_a_run_without_anything_is_refused() -> None:
    with pytest.raises(FormatError, match="nothing that a step could say"):
        Atif().write(trajectory(content=[], system_prompt=None))
