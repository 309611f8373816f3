"""Real SWE-agent files and ToolBench trees, where they lie beside the project: nothing that they say is lost."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.format import Origin, Read
from agentmill.schemas.formats.swe_agent.format import SweAgent
from agentmill.schemas.formats.toolbench import ToolBench
from agentmill.schemas.records.trajectory import Action, ApiAction, CodeAction, Trajectory
from tests.schemas.formats.leaves import held, leaves

STRUCTURE = frozenset({"role", "type", "message_type", "node_type", "agent"})


def files(pattern: str) -> list[Path]:
    root = os.environ.get("AGENTMILL_SAMPLES")
    if not root or not Path(root).is_dir():
        pytest.skip("AGENTMILL_SAMPLES names no folder of sample records")
    return sorted(Path(root).glob(pattern))


@pytest.fixture(scope="module")
def runs() -> list[tuple[dict[str, Any], Read]]:
    raws = [path.read_bytes() for path in files("swe-agent/*.traj")]
    assert len(raws) == 11
    return [(msgspec.json.decode(raw), SweAgent().read(raw, Origin("sample"))) for raw in raws]


@pytest.fixture(scope="module")
def trees() -> list[tuple[dict[str, Any], Read]]:
    raws = [path.read_bytes() for path in files("toolbench/*.json")]
    assert len(raws) == 8
    return [(msgspec.json.decode(raw), ToolBench().read(raw, Origin("sample"))) for raw in raws]


def steps_shown(step: dict[str, Any], texts: Counter[str]) -> bool:
    """Whether a step's texts are there: its reply in thought and command, its result at the start of what was shown."""
    thought, action = step["thought"], step["action"]
    reply = step["response"] in (thought, f"{thought}```\n{action}```") or step["response"] in texts
    seen = any(text.startswith(step["observation"]) for text in texts)
    return reply and seen and all(part in texts for part in (thought, action) if part)


def test_files_of_swe_agent_lose_no_text(runs: list[tuple[dict[str, Any], Read]]) -> None:
    for document, found in runs:
        assert not found.losses
        texts = held([found.trajectory])
        apart = {**document, "trajectory": None, "history": None}
        assert leaves(apart, STRUCTURE) <= texts
        contents = Counter(message["content"] for message in document["history"])
        replies = Counter(
            f"{each['thought']}```\n{each['action']}```" for each in document["history"] if "action" in each
        )
        assert contents - replies <= texts
        for message in document["history"]:
            assert set(leaves({**message, "content": None}, STRUCTURE)) <= set(texts)
        for step in document.get("trajectory", []):
            assert steps_shown(step, texts)
            assert set(leaves(step.get("state"))) <= set(texts)


def test_files_of_swe_agent_keep_every_turn_and_its_links(runs: list[tuple[dict[str, Any], Read]]) -> None:
    for document, found in runs:
        run = found.trajectory
        replies = [each for each in document["history"] if each["role"] == "assistant" and not each.get("is_demo")]
        actions = [item for item in run.content if isinstance(item, Action)]
        assert len({item.turn for item in actions}) == max(len(replies), len(document.get("trajectory", [])))
        calls = [call for each in replies for call in each.get("tool_calls") or []]
        assert [item.function for item in actions if isinstance(item, ApiAction)] == [
            call["function"]["name"] for call in calls
        ]
        steps = document.get("trajectory", [])
        commands = [item.content for item in actions if isinstance(item, CodeAction)]
        assert commands == [step["action"] for step in steps][len(calls) :]
        results = [item for item in run.content if not isinstance(item, Action) and item.turn]
        assert all(item.tool_call_id for item in results)
        assert run.outcome.reason == document.get("info", {}).get("exit_status")
        assert run.outcome.status == "unknown"
        assert from_arrow(to_arrow([run], Trajectory), Trajectory) == [run]


def test_trees_lose_no_text(trees: list[tuple[dict[str, Any], Read]]) -> None:
    for document, found in trees:
        assert not found.losses
        texts = held([found.trajectory, *found.others])
        assert leaves(document["tree"], STRUCTURE) <= texts
        assert set(leaves(document, STRUCTURE)) <= set(texts)


def test_every_line_of_a_tree_is_a_run(trees: list[tuple[dict[str, Any], Read]]) -> None:
    lines = winners = pruned = 0
    for document, found in trees:
        runs = [found.trajectory, *found.others]
        by_id = {run.trajectory_id: run for run in runs}
        assert len(by_id) == len(runs)
        lines += len(runs)
        winners += sum(run.outcome.status == "success" for run in runs)
        assert any(run.outcome.status == "success" for run in runs) == document["win"]
        assert all(run.extra["toolbench"]["win"] is document["win"] for run in runs)
        pruned += sum(run.outcome.truncated or run.outcome.reason == "gave_up" for run in runs)
        for run in found.others:
            parent = by_id[str(run.parent_id)]
            own = [item for item in run.content if item.context_operation is None]
            shared = len(run.content) - len(own)
            bare = [msgspec.structs.replace(item, context_operation=None) for item in run.content[:shared]]
            assert bare == [msgspec.structs.replace(item, context_operation=None) for item in parent.content[:shared]]
            assert own
            assert own[0].turn == run.branch_turn
        assert from_arrow(to_arrow(runs, Trajectory), Trajectory) == runs
    assert (lines, winners, pruned) == (86, 3, 83)
