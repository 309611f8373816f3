"""ATIF: identity for what it can say, our own words for the rest, and remarks where a document breaks its rules."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given

from agentmill.schemas.format import Origin
from agentmill.schemas.formats.adp.format import Adp
from agentmill.schemas.formats.atif.format import Atif
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.records.trajectory import (
    ApiAction,
    CodeAction,
    MessageAction,
    TextObservation,
    Trajectory,
    WebObservation,
)
from tests.builders import agent_message, called, instruction, seen, tool_trajectory, trajectory
from tests.schemas.formats.atif_documents import documents
from tests.schemas.formats.atif_rules import broken
from tests.schemas.formats.atif_steps import STRUCTURE, acts, answers, atif, read, user
from tests.schemas.formats.leaves import held, leaves
from tests.schemas.records import records

dialects = pytest.mark.parametrize("dialect", ["strict", "adp"])


@given(document=documents())
def test_strict_documents_come_back_as_they_are(document: dict[str, Any]) -> None:
    assert broken(document) == []
    found, losses, others, _ = read(document)
    assert not losses
    assert not others
    assert leaves(document["steps"], STRUCTURE) <= held([found])
    again = Atif().write(found)
    assert again.document == document
    assert not again.losses


@dialects
@given(run=records(Trajectory))
def test_our_records_come_back_but_for_what_is_reported(dialect: str, run: Trajectory) -> None:
    run = msgspec.structs.replace(run, extra={key: value for key, value in run.extra.items() if key != "atif"})
    format_ = Atif.model_validate({"dialect": dialect})
    assume(run.content or run.system_prompt is not None)
    document, losses = format_.write(run)
    assert broken(document, dialect) == []
    back, lost, _, _ = format_.read(msgspec.json.encode(document), Origin("demo"))
    assert not lost
    if not losses["content.order"]:
        assert back.content == run.content
    assert sorted(map(repr, back.content)) == sorted(map(repr, run.content))
    for name in set(Trajectory.__struct_fields__) - {"trajectory_id", "content", "source", "extra"}:
        assert getattr(back, name) == getattr(run, name), name
    assert {key: value for key, value in back.extra.items() if key != "atif"} == run.extra
    assert set(losses) <= {"content.order"}
    assert format_.write(back).document == document


@dialects
def test_our_runs_become_plain_steps(dialect: str) -> None:
    format_ = Atif.model_validate({"dialect": dialect})
    for run in (trajectory(), tool_trajectory()):
        document, losses = format_.write(run)
        assert not losses
        assert broken(document, dialect) == []
        assert format_.read(msgspec.json.encode(document), Origin("demo")).trajectory.content == run.content
    steps = Atif().write(tool_trajectory()).document["steps"]
    assert steps == [
        {"source": "system", "message": "Use tools.", "step_id": 1},
        {"source": "user", "message": "Where is the ball?", "step_id": 2},
        {
            "source": "agent",
            "message": "",
            "tool_calls": [
                {"tool_call_id": "call00100", "function_name": "look", "arguments": {"where": "box"}},
                {"tool_call_id": "call00101", "function_name": "look", "arguments": {"where": "floor"}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "call00100", "content": "empty"},
                    {"source_call_id": "call00101", "content": "a ball"},
                ]
            },
            "step_id": 3,
        },
        {"source": "agent", "message": "On the floor.", "step_id": 4},
    ]


def test_late_results_move_to_the_step_of_their_call_and_orphans_are_of_none() -> None:
    content = [
        instruction(),
        called("f", 1, "a"),
        agent_message("Meanwhile.", 2),
        seen("late", 2, tool_call_id="a"),
        seen("nobody asked", 2, tool_call_id="z"),
        called("f", 3, None),
    ]
    document, losses = Atif().write(trajectory(content=content, system_prompt=None))
    assert broken(document) == []
    assert losses == {"content.order": 2}
    steps = document["steps"]
    assert steps[1]["observation"]["results"][0] == {
        "source_call_id": "a",
        "content": "late",
        "extra": {"agentmill": {"turn": 2}},
    }
    assert "source_call_id" not in steps[2]["observation"]["results"][0]
    back = read(document).trajectory
    assert sorted(map(repr, back.content)) == sorted(map(repr, content))


def test_code_pages_and_raw_arguments() -> None:
    content = [
        instruction(),
        CodeAction(language="C++", content="int x;", turn=1, tool_call_id="c"),
        WebObservation(axtree="[1]", url="http://a", html="<p>", turn=1, tool_call_id="c"),
        ApiAction(function="f", kwargs={}, raw_arguments="[1", turn=2, tool_call_id="d"),
    ]
    run = trajectory(content=content)
    for dialect in ("strict", "adp"):
        format_ = Atif.model_validate({"dialect": dialect})
        document, losses = format_.write(run)
        assert not losses
        call = document["steps"][2]["tool_calls"][0]
        assert (call["function_name"], call["arguments"]) == ("execute_C++", {"code": "int x;"})
        assert document["steps"][2]["observation"]["results"][0]["content"] == "[1]"
        back = format_.read(msgspec.json.encode(document), Origin("demo")).trajectory
        assert back.content == content
    strict = Atif().write(run).document["steps"][2]["observation"]["results"][0]["extra"]["agentmill"]
    assert strict["text"] == "axtree"
    assert "axtree" not in strict


def test_the_dialect_of_adp_is_read() -> None:
    document = {
        "schema_version": "ATIF-v1.7",
        "steps": [
            {"source": "user", "message": "Go.", "extra": {"adp_class": "text_observation", "adp_source": "user"}},
            {
                "source": "agent",
                "message": "Look.",
                "metrics": {"cost": 0.5},
                "extra": {"description": "Look."},
                "tool_calls": [
                    {
                        "tool_call_id": "x",
                        "function_name": "execute_ipython_cell",
                        "arguments": {"code": "1"},
                        "extra": {"adp_class": "code_action", "language": "python", "reward": 1},
                    }
                ],
                "observation": {
                    "results": [
                        {
                            "source_call_id": "x",
                            "content": "p",
                            "extra": {"web": {"html": None, "axtree": "p", "url": "u"}},
                        },
                        {"content": "hint", "extra": {"adp_source": "agent"}},
                    ]
                },
            },
        ],
    }
    found, losses, _, remarks = read(document)
    assert not losses
    assert not remarks
    assert found.content == [
        TextObservation(content="Go.", source="user"),
        CodeAction(language="python", content="1", description="Look.", reward=1.0, turn=1, tool_call_id="x"),
        WebObservation(axtree="p", url="u", turn=1, tool_call_id="x"),
        TextObservation(content="hint", source="agent", turn=1),
    ]
    strict = Atif().write(found).document
    assert broken(strict) == []
    assert strict["steps"][1]["metrics"] == {"cost_usd": 0.5}
    assert strict["steps"][1]["tool_calls"][0]["function_name"] == "execute_ipython_cell"
    assert Atif(dialect="adp").write(found).document["steps"][1]["metrics"] == {"cost": 0.5}


def test_tokens_are_deltas_here_and_whole_prompts_there() -> None:
    metrics = [
        {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5]},
        {"prompt_token_ids": [1, 2, 3, 4], "completion_token_ids": [5]},
        {"prompt_token_ids": [9], "completion_token_ids": [8]},
        {"prompt_token_ids": [9, 8], "completion_token_ids": [7, 6], "logprobs": [-0.5]},
    ]
    document = atif(user(), *(acts("x", metrics=each) for each in metrics))
    found, _, _, remarks = read(document)
    tokens = [item.tokens for item in found.content if isinstance(item, MessageAction)]
    starts = [(each.prompt_ids, each.sampled_ids, each.segment_start) for each in tokens if each is not None]
    assert starts == [([1, 2], [3], True), ([4], [5], False), ([9], [8], True)]
    assert remarks == {"logprobs_length": 1}
    assert Atif().write(found).document == document


def test_steps_without_a_model_and_copied_ones_are_marked() -> None:
    document = atif(user(), acts("scripted", llm_call_count=0), acts("old", ("a", "f"), is_copied_context=True))
    found = read(document).trajectory
    assert [item.train for item in found.content] == [None, False, None]
    assert [item.context_operation for item in found.content] == [None, None, "copied"]
    assert Atif().write(found).document == document


def test_repeated_ids_link_within_their_step() -> None:
    first = acts("x", ("a", "f"))
    second = acts("y", ("a", "f"), observation=answers(("a", "2")))
    document = atif(user(), first, second)
    found = read(document).trajectory
    assert [item.tool_call_id for item in found.content] == [None, "a", "a_2", "a_2"]
    assert Atif().write(found).document == document


def test_sub_agents_are_runs_and_their_references_are_checked() -> None:
    inner = atif(user("Sub."), acts("done"), trajectory_id="sub")
    twin = atif(user("Twin."), trajectory_id="sub")
    references = [{"trajectory_id": name} for name in ("sub", "main", "gone")] + [{"trajectory_path": "there.json"}]
    step = acts(
        "x", ("a", "f"), observation={"results": [{"source_call_id": "a", "subagent_trajectory_ref": references}]}
    )
    document = atif(user(), step, trajectory_id="main", subagent_trajectories=[inner, twin])
    found, losses, others, remarks = read(document)
    assert not losses
    assert [each.extra["atif"]["trajectory_id"] for each in others] == ["sub", "sub"]
    assert [each.extra["atif"]["part_of"] for each in others] == [found.trajectory_id] * 2
    assert len({found.trajectory_id, *(each.trajectory_id for each in others)}) == 3
    assert remarks == {"repeated_trajectory_id": 1, "cyclic_reference": 1, "unresolved_reference": 1}
    assert Atif().write(found).document == document


def test_older_and_newer_versions_are_read_and_1_7_is_written() -> None:
    old = atif(user(), acts("x", ("a", "f")), schema_version="ATIF-v1.2", session_id="s")
    old["steps"][1]["observation"] = {
        "results": [{"source_call_id": "a", "subagent_trajectory_ref": [{"session_id": "t"}]}]
    }
    document, losses = Atif().write(read(old).trajectory)
    assert broken(document) == []
    assert losses == {"steps.observation.results.subagent_trajectory_ref": 1}
    audio = {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}, "duration_sec": 1.0}
    new = atif(user([{"type": "text", "text": "Hear."}, audio]), schema_version="ATIF-v1.8")
    found = read(new).trajectory
    assert found.content == [TextObservation(content="Hear.", source="user")]
    document, losses = Atif().write(found)
    assert broken(document) == []
    assert losses == {"steps.message": 1}


def test_our_own_words_that_are_none_are_kept() -> None:
    step = user(extra={"agentmill": {"turn": "x"}})
    found = read(atif(step, extra={"agentmill": {"oops": 1}})).trajectory
    assert found.extra["atif"]["extra"] == {"agentmill": {"oops": 1}}
    assert found.extra["atif"]["content"]["0"]["agentmill"] == {"turn": "x"}


@pytest.fixture(scope="module")
def samples() -> list[bytes]:
    root = os.environ.get("AGENTMILL_SAMPLES")
    if not root or not Path(root).is_dir():
        pytest.skip("AGENTMILL_SAMPLES names no folder of sample records")
    return [line for file in sorted(Path(root).glob("adp/*/std.jsonl")) for line in file.read_bytes().splitlines()]


@dialects
def test_real_records_pass_through_atif_unchanged(dialect: str, samples: list[bytes]) -> None:
    format_ = Atif.model_validate({"dialect": dialect})
    for raw in samples:
        run = Adp().read(raw, Origin("sample")).trajectory
        document, losses = format_.write(run)
        assert broken(document, dialect) == []
        back, lost, _, _ = format_.read(msgspec.json.encode(document), Origin("sample"))
        assert not lost
        assert set(losses) <= {"content.order"}
        assert losses["content.order"] == 0 or len(back.content) == len(run.content)
        if not losses:
            assert back.content == run.content
            assert not differences(run, back, "atif")
        assert leaves(msgspec.json.decode(raw)) <= held([back])
    assert len(samples) == 51


def test_what_has_no_place_in_a_document_is_counted() -> None:
    call = {"tool_call_id": "1", "function_name": "f", "arguments": {}}
    observed = {"results": [{"source_call_id": "1", "content": "r"}], "extra": {"truncated": True}}
    steps = [
        {"step_id": 1, "source": "user", "message": "q"},
        {"step_id": 2, "source": "agent", "message": "t", "tool_calls": [call], "observation": observed},
    ]
    document = {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}, "steps": steps}
    odd = {"tools": [{"name": "f"}], "system": "s", "content": [], "part_of": 3}
    found = Atif().read(json.dumps({**document, **odd}).encode(), Origin("demo"))
    assert found.losses == {"steps.observation.extra": 1, **dict.fromkeys(odd, 1)}
    assert Atif().write(found.trajectory).document["steps"][0]["message"] == "q"
