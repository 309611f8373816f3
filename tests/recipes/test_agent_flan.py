"""Agent-FLAN: twins without the tools, their rows without a call that must not be, forms and shares of the mixture."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from agentmill.schemas.records.trajectory import ApiAction
from tests.pipelines.cli.tables import agentmill
from tests.recipes.data_half import rows, write_general_rows

SMALL = ["steps.proposed_environments.n=3", "steps.proposed_environments.held_out=0.34", "steps.proposed_tasks.n=6"]
KINDS = {"solvable", "no_tool", "irrelevant_tool"}
SHARES = {"chat_rows": 0.3, "react_rows": 0.05, "negative_rows": 0.15, "general_rows": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("agent_flan")
    general = write_general_rows(made / "data/general_rows")
    given = [f"run_dir={made / 'run'}", f"data.general_rows={general}", "steps.rows.quotas.0.at_most=6", *SMALL]
    assert agentmill("run", "agent_flan", "--only", "data", *given) == 0
    return made / "run"


def test_each_task_has_a_twin_of_each_kind_in_its_split(folder: Path) -> None:
    parents = {task.task_id: task for task in rows(folder / "tasks")}
    kinds = defaultdict(set)
    for twin in rows(folder / "twins"):
        (parent,) = twin.lineage.parents
        assert twin.split == parents[parent].split
        kinds[parent].add(twin.lineage.notes["contrast"])
    assert kinds == dict.fromkeys(parents, KINDS)


def test_negatives_call_nothing_but_decline(folder: Path) -> None:
    played = {each.trajectory_id: each for each in rows(folder / "taught")}
    negatives = rows(folder / "negative_rows")
    assert {played[row.trajectory_id].extra["contrast"] for row in negatives} == KINDS - {"solvable"}
    for row in negatives:
        calls = [item.function for item in played[row.trajectory_id].content if isinstance(item, ApiAction)]
        assert calls == ["decline"]
        assert [each for message in row.messages for each in message.tool_calls or ()]


def test_positives_are_in_the_chat_form_and_a_part_as_react_text(folder: Path) -> None:
    chat, react = rows(folder / "chat_rows"), rows(folder / "react_rows")
    assert {row.trajectory_id for row in chat} == {row.trajectory_id for row in react}
    for row in chat:
        assert "decline" in [tool["function"]["name"] for tool in json.loads(row.tools)]
        assert all(message.tool_calls for message in row.messages if message.role == "assistant")
    for row in react:
        assert row.tools is None
        own = [message for message in row.messages if message.role == "assistant"]
        assert all(message.content.startswith("Action: ") and not message.tool_calls for message in own)


def test_the_mixture_has_its_shares_and_keeps_the_quotas(folder: Path) -> None:
    of_row = {row.row_id: name for name in SHARES if name != "general_rows" for row in rows(folder / name)}
    mixed = rows(folder / "rows")
    counts = Counter(of_row.get(row.row_id, "general_rows") for row in mixed)
    for name, share in SHARES.items():
        assert counts[name] == pytest.approx(share * len(mixed), abs=1)
    skills = {twin.task_id: twin.skills for twin in rows(folder / "twins")}
    task_of = {each.trajectory_id: each.task_id for each in rows(folder / "taught")}
    by_skill = Counter(skill for row in mixed for skill in skills.get(task_of.get(row.trajectory_id, ""), ()))
    # More than so many chat rows are there, and the quota of one skill bounds them.
    assert max(by_skill.values()) == 6 < len(rows(folder / "chat_rows"))
