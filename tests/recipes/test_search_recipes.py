"""Recipes over a corpus: each data half runs in small, and is what makes it that method."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from agentmill.pipelines.recipes.grammar import read_recipe
from agentmill.pipelines.recipes.plan import make_plan
from agentmill.pipelines.recipes.shipped import recipe_files
from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, ApiAction, Trajectory
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text
from tests.recipes.data_half import rows, run


def answers(task: Task) -> list[str]:
    given = task.goal["answer"]
    return given if isinstance(given, list) else [given]


def carried_out(trajectory: Trajectory) -> list[ApiAction]:
    return [item for item in trajectory.content if isinstance(item, ApiAction) and item.role == "actor"]


def is_one_assistant(row: SftRow, agents: set[str]) -> bool:
    """Whether what the agents said is within the messages of the assistant, and nobody else says anything."""
    spoken = "".join(str(message.content) for message in row.messages if message.role == "assistant")
    others = {message.role for message in row.messages[2:]} - {"assistant", "tool"}
    return not others and all(f"<{name}>" in spoken for name in agents)


def test_chain_of_agents_learns_long_right_answers_to_what_is_not_known_by_heart(
    searched: Path, tmp_path: Path
) -> None:
    asked: dict[str, Task] = {task.instruction: task for task in rows(searched / "tasks") if task.split == "train"}
    by_heart = {task.task_id for place, task in enumerate(asked.values()) if place % 4 == 0}

    def answering(body: Any) -> Reply:
        task = asked[body["messages"][-1]["content"]]
        return text("; ".join(answers(task)) if task.task_id in by_heart else "I do not know.")

    with FakeOpenAi(answering) as server:
        actor = f"models.actor={{policy: openai, model: {MODEL}, endpoints: ['{server.url}']}}"
        folder = run(searched, tmp_path, "chain_of_agents", actor)
    played: dict[str, Trajectory] = {each.trajectory_id: each for each in rows(folder / "taught")}
    assert {each.task_id for each in played.values()} == {task.task_id for task in asked.values()} - by_heart
    reflecting = {name for name, each in played.items() if any(item.error for item in each.content)}
    found: list[SftRow] = rows(folder / "tuned_rows")
    used = Counter(row.trajectory_id in reflecting for row in found)
    assert used[True] == 4 * used[False] > 0
    assert len(rows(folder / "straight_rows")) > used[False], "some without a reflection are left out"
    vetoed = 0
    for row in found:
        trajectory = played[str(row.trajectory_id)]
        assert trajectory.outcome.status == "success"
        assert len(carried_out(trajectory)) >= 5
        prevented = {item.turn for item in trajectory.content if isinstance(item, Action) and item.role == "proposer"}
        assert is_one_assistant(row, {"planner", *(["critic"] if prevented else [])})
        calls = [call for message in row.messages for call in message.tool_calls]
        assert [call.id for call in calls] == [call.tool_call_id for call in carried_out(trajectory)]
        vetoed += bool(prevented)
    assert vetoed


def test_masksearch_learns_one_mask_before_many_and_asks_anew_in_each_round(searched: Path, tmp_path: Path) -> None:
    folder = run(searched, tmp_path, "masksearch", "steps.one_mask.n=4", "steps.more_masks.n=4")
    asked: list[set[str]] = []
    for number in (1, 2):
        place = folder / f"loop/round-0{number}"
        asked.append(set())
        for phase, (tasks, least, most) in {"one": ("one_mask", 1, 1), "more": ("more_masks", 2, 4)}.items():
            of: dict[str, Task] = {task.task_id: task for task in rows(place / tasks)}
            asked[-1] |= {task.instruction for task in of.values()}
            played = {each.trajectory_id: each for each in rows(place / f"found_{phase}")}
            learnt: list[SftRow] = rows(place / f"{phase}_rows")
            assert learnt
            for row in learnt:
                task = of[str(row.task_id)]
                assert least <= len(answers(task)) <= most
                assert "[MASK" in task.instruction
                assert played[row.trajectory_id].outcome.status == "success"
                assert is_one_assistant(row, {"planner", "observer"})
    assert asked[0].isdisjoint(asked[1])


def test_masksearch_trains_the_phases_one_after_the_other_and_their_model_teaches_the_next_round(
    tmp_path: Path,
) -> None:
    steps = make_plan(read_recipe(recipe_files()["masksearch"], [f"run_dir={tmp_path}"])).steps
    models = {
        step.name.partition("loop/")[2]: [each.settings({}).name for each in step.models.values()] for step in steps
    }
    base = models["round-01/found_one"]
    assert models["round-01/first"] == models["round-02/first"] == base
    assert models["round-01/second"] == models["round-02/second"] == ["first"]
    assert models["round-02/found_one"] == models["round-02/found_more"] == ["second"]
