"""ADP: nothing is lost that it can say, nothing invented, and what it cannot say is counted."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given

from agentmill.schemas.chat import to_messages
from agentmill.schemas.format import FormatError, Origin
from agentmill.schemas.formats.adp.format import Adp, metadata
from agentmill.schemas.formats.adp.items import LANGUAGES
from agentmill.schemas.ids import ingested_id
from agentmill.schemas.records.trajectory import CodeAction, ImageObservation, Trajectory, WebObservation
from tests.builders import agent_message, called, instruction, seen, tool, tool_trajectory, trajectory
from tests.schemas.formats.adp_rules import broken
from tests.schemas.records import records

ORIGIN = Origin("demo", "train", row=4, licence="MIT")
V1 = {
    "id": "run-7",
    "content": [
        {"class_": "text_observation", "content": "List files.\r\n", "name": None, "source": "user"},
        {"class_": "code_action", "language": "javasript", "content": "ls()", "description": None},
        {"class_": "text_observation", "content": "a b", "name": "shell", "source": "user"},
        {
            "class_": "api_action",
            "function": "open",
            "kwargs": {"n": 1.0, "x": [None, {}], "é": "01"},
            "description": "Now.",
        },
        {"class_": "api_action", "function": "close", "kwargs": {}, "description": None},
        {
            "class_": "web_observation",
            "html": None,
            "axtree": "[1]",
            "url": "http://a",
            "image_observation": {
                "class_": "image_observation",
                "content": "i.png",
                "source": "environment",
                "annotations": None,
            },
            "viewport_size": [800, 600],
        },
        {"class_": "image_observation", "content": "j.png", "source": "agent", "annotations": []},
        {"class_": "message_action", "content": "Done 日本.", "description": None},
    ],
    "details": {"reward": "0.0", "note": ""},
}


def raw(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def read(document: Any) -> Trajectory:
    return Adp().read(raw(document), ORIGIN).trajectory


def test_a_record_of_the_paper_s_version_reads_as_it_stands() -> None:
    found, losses, *_ = Adp().read(raw(V1), ORIGIN)
    assert not losses
    assert found.source is not None
    assert found.trajectory_id == ingested_id("demo", "train", found.source.sha256, 0)
    assert (found.source.dataset, found.source.row, found.source.licence) == ("demo", 4, "MIT")
    assert [item.turn for item in found.content] == [0, 1, 1, 2, 2, 2, 2, 3]
    ids = [item.tool_call_id for item in found.content]
    assert ids == [None, "call_1", "call_1", "call_3", "call_4", "call_3", "call_4", None]
    assert found.extra == {"adp": {"id": "run-7", "details": {"reward": "0.0", "note": ""}}}
    assert [message.role for message in to_messages(None, found.content)][-4:] == [
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


def test_the_paper_s_version_round_trips() -> None:
    document, losses = Adp(version="1").write(read(V1))
    assert document == V1
    assert not losses
    assert broken(document, "1") == []


def test_the_paper_s_version_becomes_valid_1_5() -> None:
    document, losses = Adp().write(read(V1))
    assert not losses
    assert broken(document, "1.5") == []
    assert document["schema_version"] == "1.5.0"
    assert document["available_custom_tools"] == ["open", "close"]
    assert document["available_code_languages"] == ["javasript"]
    assert Adp().write(read(document)).document == document


def test_one_observation_after_two_calls_answers_the_last() -> None:
    calls = [{"class_": "api_action", "function": name, "kwargs": {}} for name in "ab"]
    answer = {"class_": "text_observation", "content": "x", "source": "environment"}
    found = read({"id": "i", "content": [*calls, answer, answer]})
    assert [item.tool_call_id for item in found.content] == ["call_0", "call_1", "call_0", "call_1"]
    found = read({"id": "i", "content": [*calls, answer]})
    assert [item.tool_call_id for item in found.content] == [None, "call_1", "call_1"]


def test_a_message_between_call_and_observation_breaks_the_link() -> None:
    content = [
        {"class_": "api_action", "function": "f", "kwargs": {}},
        {"class_": "message_action", "content": "?"},
        {"class_": "text_observation", "content": "x", "source": "user"},
    ]
    assert [item.tool_call_id for item in read({"id": "i", "content": content}).content] == [None, None, None]


@pytest.mark.parametrize("version", ["1", "1.5"])
def test_our_own_runs_come_back_but_for_what_is_counted(version: str) -> None:
    run = trajectory(attempt=2, extra={"note": [1.0, None]})
    written = Adp.model_validate({"version": version}).write(run)
    assert broken(written.document, version) == []
    back = read(written.document)
    for name in ("task_id", "environment_id", "attempt", "system_prompt", "outcome", "generation", "usage", "split"):
        assert getattr(back, name) == getattr(run, name)
    assert back.extra["note"] == [1.0, None]
    assert [item.turn for item in back.content] == [item.turn for item in run.content]
    reward = {"content.reward": 1} if version == "1" else {}
    assert written.losses == Counter({"content.tokens": 2, "content.error": 1, **reward})


def test_tools_and_their_results_stay_linked_in_1_5() -> None:
    run = tool_trajectory()
    document, losses = Adp().write(run)
    assert not losses
    assert broken(document, "1.5") == []
    assert document["available_custom_tools"] == ["look"]
    back = read(document)
    assert back.content == run.content
    assert back.tools == run.tools


def test_repeated_ids_become_unique_and_dangling_ones_go() -> None:
    content = [
        instruction(),
        called("f", 1, "a"),
        seen("1", 1, tool_call_id="a"),
        called("f", 2, "a"),
        seen("2", 2, tool_call_id="a"),
        seen("orphan", 2, tool_call_id="z"),
        agent_message("hm", 3, tool_call_id="m"),
        called("f", 3, "last"),
    ]
    document, losses = Adp().write(trajectory(content=content, tools=[tool("f")]))
    assert broken(document, "1.5") == []
    ids = [item.get("tool_call_id") for item in document["content"]]
    assert ids == [None, "a", "a", "a_2", "a_2", None, None, None]
    assert losses["content.tool_call_id"] == 5


@pytest.mark.parametrize("call_id", [None, "a"])
def test_a_call_that_a_user_turn_follows_cannot_be_said(call_id: str | None) -> None:
    content = [instruction(), called("f", 1, call_id), seen("no answer", 1, tool_call_id="b")]
    with pytest.raises(FormatError, match="item 1 is a call, item 2 is no answer to it") as caught:
        Adp().write(trajectory(content=content))
    assert caught.value.reason == "unanswered_call"
    assert broken(Adp(version="1").write(trajectory(content=content)).document, "1") == []


def test_unknown_languages_map_to_legal_ones_and_come_back() -> None:
    names = ["C++", "Zig", "python", "javasript"]
    content = [instruction(), *(CodeAction(language=name, content="x", turn=1) for name in names)]
    for version in ("1", "1.5"):
        document, losses = Adp.model_validate({"version": version}).write(trajectory(content=content))
        written = [item["language"] for item in document["content"][1:]]
        assert written == ["cpp", "code", "python", "javasript"]
        assert set(written) <= LANGUAGES
        assert not losses
        assert [item.language for item in read(document).content[1:]] == names
    assert len(LANGUAGES) == 304


def test_what_later_versions_add_is_read() -> None:
    document = {
        "schema_version": "1.3.0",
        "id": "i",
        "available_apis": ["f"],
        "content": [
            {
                "class_": "api_action",
                "function": "f",
                "kwargs": {},
                "reasoning_content": "hm",
                "reward": 1,
                "tool_call_id": "q",
            },
            {"class_": "text_observation", "content": "x", "source": "environment", "reward": 0.5, "tool_call_id": "q"},
        ],
        "details": {"n": {"a": [1]}},
    }
    found, losses, *_ = Adp().read(raw(document), ORIGIN)
    assert not losses
    assert found.content[0].reasoning_content == "hm"
    assert [item.reward for item in found.content] == [1.0, 0.5]
    written = Adp().write(found)
    assert written.document["available_custom_tools"] == ["f"]
    assert written.document["details"] == {"n": {"a": [1]}}
    assert not written.losses
    assert broken(written.document, "1.5") == []
    assert Adp(version="1").write(found).losses["details.n"] == 1


def test_fields_that_we_do_not_hold_are_kept() -> None:
    annotation = {
        "text": None,
        "element_type": "button",
        "bounding_box": {"x": 0, "y": 1, "width": 2, "height": 3},
        "clickable": True,
        "editable": None,
    }
    content = [
        {"class_": "message_action", "content": "x", "mood": "good", "nothing": None},
        {"class_": "image_observation", "content": "i", "source": "user", "annotations": [annotation]},
    ]
    found, losses, *_ = Adp().read(raw({"id": "i", "content": content}), ORIGIN)
    assert not losses
    assert found.extra["adp"]["content"] == {"0": {"mood": "good"}, "1": {"annotations": [{"clickable": True}]}}
    assert Adp().write(found).losses == Counter({"content.mood": 1, "content.annotations": 1})
    image = found.content[1]
    assert isinstance(image, ImageObservation)
    assert image.annotations is not None
    assert image.annotations[0].bounding_box.height == 3.0


def test_details_that_only_look_like_ours_are_kept() -> None:
    for held in ("text", '{"outcome": 3}', {"task_id": 5}, {"other": 1}, {"languages": []}):
        found = read({"id": "i", "content": [], "details": {"agentmill": held}})
        assert found.extra["adp"]["details"] == {"agentmill": held}
        assert found.task_id is None


def test_metadata_declares_what_is_used() -> None:
    web = trajectory(content=[WebObservation(), CodeAction(language="Zig", content="x", turn=1), called("go")])
    found = metadata([tool_trajectory(tools=[tool("look"), tool("unused")]), web])
    look, go, unused = (one["function"] for one in found["custom_tools"])
    assert look == {"name": "look", "description": "look something", "parameters": tool("look").parameters}
    assert go == {"name": "go", "parameters": {"type": "object", "properties": {}}}
    assert unused["name"] == "unused"
    assert (found["code_enabled"], found["browser_enabled"]) == (["code"], True)
    assert metadata([trajectory()]) == {"custom_tools": [], "code_enabled": [], "browser_enabled": False}


def test_the_rules_of_1_5_are_checked_and_reject_nothing() -> None:
    def call(**fields: Any) -> dict[str, Any]:
        return {"class_": "api_action", "function": "f", "kwargs": {}, **fields}

    def answer(**fields: Any) -> dict[str, Any]:
        return {"class_": "text_observation", "content": "x", "source": "environment", **fields}

    message = {"class_": "message_action", "content": "m"}
    cases: list[tuple[list[dict[str, Any]], dict[str, int]]] = [
        ([call(), answer()], {"call_without_id": 1}),
        ([call(), message], {}),
        ([call(tool_call_id="a"), answer(tool_call_id="a")], {}),
        (
            [call(tool_call_id="a"), answer(tool_call_id="a"), call(tool_call_id="a"), answer(tool_call_id="a")],
            {"repeated_call_id": 1, "duplicate_result": 1},
        ),
        ([answer(tool_call_id="a"), call(tool_call_id="a"), message], {"orphan_result": 1}),
        ([call(tool_call_id="a"), message], {"unanswered_call": 1}),
        ([{**message, "tool_call_id": "m"}], {"id_of_message": 1}),
    ]
    for content, remarks in cases:
        for version in ("1.0.0", "1.5.0"):
            found = Adp().read(raw({"schema_version": version, "id": "i", "content": content}), ORIGIN)
            assert found.remarks == remarks
            assert len(found.trajectory.content) == len(content)
        assert not Adp().read(raw({"id": "i", "content": content}), ORIGIN).remarks
    code = {"class_": "code_action", "language": "sh", "content": "ls", "description": None}
    stated = {"available_apis": ["g"], "available_code_languages": ["sh", "c"]}
    document = {"schema_version": "1.3.0", "id": "i", "content": [call(), code], **stated}
    assert Adp().read(raw(document), ORIGIN).remarks == {"undeclared_tool": 1, "other_languages": 1}


@pytest.mark.parametrize("version", ["1", "1.5"])
@given(run=records(Trajectory))
def test_whatever_is_written_is_valid_and_stable(version: str, run: Trajectory) -> None:
    adp = Adp.model_validate({"version": version})
    run = msgspec.structs.replace(run, extra={key: value for key, value in run.extra.items() if key != "adp"})
    try:
        document, _ = adp.write(run)
    except FormatError as error:
        assume(error.reason != "unanswered_call")
        raise
    assert broken(document, version) == []
    found, losses, *_ = adp.read(msgspec.json.encode(document), ORIGIN)
    assert not losses
    again = adp.write(found)
    assert again.document == document
    assert not again.losses
