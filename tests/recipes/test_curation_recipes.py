"""Recipes that choose and mix what is trained on: each data half runs in small, and is what makes it that method."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agentmill.schemas.records.trajectory import Action
from agentmill.schemas.tables import Table
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text
from tests.pipelines.cli.tables import agentmill

SMALL = ["steps.proposed_environments.n=3", "steps.proposed_environments.held_out=0", "steps.proposed_tasks.n=4"]


def run(folder: Path, name: str, *overrides: str) -> Path:
    """The folder of the data half of a recipe, in small."""
    assert agentmill("run", name, "--only", "data", f"run_dir={folder / 'run'}", *SMALL, *overrides) == 0
    return folder / "run"


def rows(table: Path) -> list[Any]:
    return list(Table.open(table).rows())


def test_agenttuning_mixes_a_fifth_of_successful_trajectories_with_general_rows(tmp_path: Path) -> None:
    folder = run(tmp_path, "agenttuning")
    mixed = [row.trajectory_id for row in rows(folder / "rows")]
    won = {each.trajectory_id for each in rows(folder / "taught") if each.outcome.status == "success"}
    counts = Counter(each.startswith("general") for each in mixed)
    assert {each for each in mixed if not each.startswith("general")} <= won
    assert counts[False] >= 5
    assert counts[True] == 4 * counts[False]


def test_agentrefine_has_errors_in_the_context_and_none_with_loss(tmp_path: Path) -> None:
    folder = run(tmp_path, "agentrefine")
    played = {each.trajectory_id: each for each in rows(folder / "taught")}
    made = rows(folder / "rows")
    assert made
    for row in made:
        content = played[row.trajectory_id].content
        wrong = {item.turn for item in content if item.error}
        acted = [item.turn for item in content if isinstance(item, Action)]
        own = [message for message in row.messages if message.role == "assistant"]
        turns = list(dict.fromkeys(acted))
        assert wrong
        assert len(own) == len(turns)
        assert [message.train for message in own] == [turn not in wrong for turn in turns]


def test_actionstudio_has_one_row_for_each_step_of_what_the_rules_and_the_judge_pass(tmp_path: Path) -> None:
    asked: list[str] = []

    def judging(body: Any) -> Reply:
        asked.append(str(body["messages"]))
        return text(json.dumps({"reasons": "so", "verdict": 5 if len(asked) % 2 else 1}))

    with FakeOpenAi(judging) as server:
        critic = f"models.critic={{policy: openai, model: {MODEL}, endpoints: ['{server.url}']}}"
        folder = run(tmp_path, "actionstudio", critic)
    passed: dict[str, set[str]] = {"judge": set(), "check_rules": set()}
    for verdict in [*rows(folder / "judged"), *rows(folder / "ruled")]:
        if verdict.passed and verdict.name in passed:
            passed[verdict.name].add(verdict.trajectory_id)
    played = {each.trajectory_id: each for each in rows(folder / "taught")}
    kept = passed["judge"] & passed["check_rules"]
    steps = {each: len({item.turn for item in played[each].content if isinstance(item, Action)}) for each in kept}
    assert 0 < len(kept) < len(played)
    assert Counter(row.trajectory_id for row in rows(folder / "rows")) == steps
