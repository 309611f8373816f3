"""Recipes in which models write thoughts, tasks and trajectories: each data half is what makes it that method."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from agentmill.pipelines.operators.replay import likelihood
from agentmill.schemas.records.rows import SftRow, UnpairedRow
from agentmill.schemas.records.trajectory import Action, MessageAction, TextObservation, Trajectory
from agentmill.schemas.tables import Table
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text
from tests.recipes.data_half import rows, run


def drawn(asked: Any, n: int) -> int:
    """A number below ``n`` that depends on what was asked alone."""
    return int.from_bytes(hashlib.sha256(json.dumps(asked).encode()).digest()[:4]) % n


def model(name: str, server: FakeOpenAi, policy: str = "openai") -> str:
    return f"models.{name}={{policy: {policy}, model: {MODEL}, endpoints: ['{server.url}']}}"


def test_agentbank_writes_a_thought_before_each_action_that_was_there_and_balances_skills(
    made: Path, tmp_path: Path
) -> None:
    def thinking(body: Any) -> Reply:
        return text(json.dumps({"thought": f"This brings me nearer, in way {drawn(body['messages'], 997)}."}))

    with FakeOpenAi(thinking) as server:
        quota = "steps.balanced.quotas=[{by: task.skills, at_most: 2}]"
        folder = run(made, tmp_path, "agentbank", model("writer", server), quota)
    gold: dict[str, list[MessageAction]] = {
        each.trajectory_id: [item for item in each.content if isinstance(item, MessageAction)]
        for each in rows(folder / "demonstrations")
    }
    assert all(item.description is None for actions in gold.values() for item in actions)
    thoughts = defaultdict(list)
    for label in sorted(rows(folder / "thoughts/labels"), key=lambda label: label.item):
        thoughts[label.trajectory_id].append(label.value)
    found: list[SftRow] = rows(folder / "rows")
    for row in found:
        own = [message for message in row.messages if message.role == "assistant"]
        actions = [item.content for item in gold[row.trajectory_id]]
        assert [message.content for message in own] == [
            f"{thought}\n{action}" for thought, action in zip(thoughts[row.trajectory_id], actions, strict=True)
        ]
        assert all(message.train for message in own)
    skills = {each.task_id: each.skills for each in rows(made / "tasks")}
    counts = Counter(skill for row in found for skill in skills[str(row.task_id)])
    assert max(counts.values()) == 2
    assert 2 <= len(found) < len(gold)


class Uncertain(FakeOpenAi):
    """Its answers are likely or not, by what was asked."""

    def completion(self, chat: dict[str, Any], body: dict[str, Any]) -> bytes:
        answer = json.loads(super().completion(chat, body))
        logprob = (-0.01, -0.4, -2.0)[drawn([body["messages"], body["seed"]], 3)]
        for token in answer["choices"][0]["logprobs"]["content"]:
            token["logprob"] = logprob
        return json.dumps(answer).encode()


def test_webrl_makes_tasks_of_failures_plays_those_in_the_band_and_replays_what_is_likely(
    made: Path, tmp_path: Path
) -> None:
    problems = defaultdict(list)
    sources = {each.environment_id: each.source for each in rows(made / "environments")}
    for task in rows(made / "tasks"):
        problems[sources[task.environment_id]].append(task.initial_state["problem"])

    def writing(body: Any) -> Reply:
        asked = body["messages"][1]["content"]
        known = next(each for source, each in problems.items() if source in asked)
        return text(json.dumps({"problem": known[drawn(asked, len(known))]}))

    with FakeOpenAi(writing) as author, Uncertain([text("dance")], with_tokens=True) as actor:
        judge = ["models.judge={policy: expert, mistakes: 0.5}", "steps.orm.model=judge"]
        small = ["steps.loop.rounds=2", "steps.proposed.n=4", "steps.explored.k=8"]
        models = [model("actor", actor, "vllm"), model("author", author), *judge]
        folder = run(made, tmp_path, "webrl", *models, *small)
    first, second = folder / "loop/round-01", folder / "loop/round-02"
    scores = {each.trajectory_id: each for each in rows(folder / "first_scores")}
    for place in (first, second):
        new = {each.task_id: each for each in rows(place / "new_tasks")}
        shown = {parent for each in new.values() for parent in each.lineage.parents}
        assert shown
        assert not any(scores[each].passed for each in shown), "tasks are made of failures"
        worth = {each.trajectory_id: each.score for each in rows(place / "worth")}
        estimates = defaultdict(list)
        for each in rows(place / "attempts"):
            estimates[each.task_id].append(worth[each.trajectory_id])
        played = {each.task_id for each in rows(place / "explored")}
        assert played
        assert played == {task for task, found in estimates.items() if 0.05 <= statistics.mean(found) <= 0.75}
        assert played < set(new)
        scores |= {each.trajectory_id: each for each in rows(place / "scores")}
        labels: list[UnpairedRow] = rows(place / "rows")
        assert {row.label for row in labels} == {True, False}
        assert all(row.label == scores[row.trajectory_id].passed for row in labels)
    earlier: list[Trajectory] = rows(first / "explored")
    within = {each.trajectory_id for each in earlier if 0.5 <= (likelihood(each) or 0) <= 0.95}
    won = {each.trajectory_id for each in earlier if scores[each.trajectory_id].passed}
    latest = {each.trajectory_id for each in rows(second / "explored")}
    trained = {row.trajectory_id for row in rows(second / "rows")}
    assert latest <= trained, "what is new is trained on, failures too"
    assert trained - latest == within & won
    assert within & won
    assert won - within, "others are too likely or not likely enough"


def test_self_improve_trains_on_what_it_finds_good_and_on_what_it_imagines_elsewhere(
    made: Path, tmp_path: Path
) -> None:
    turn = {"thought": "On.", "action": "look", "observation": "There is nothing new."}
    written = json.dumps({"turns": [turn, turn], "ending": {"status": "success"}})
    with FakeOpenAi([text(written)]) as server:
        small = ["steps.other_proposed.n=2", "steps.imagined.policy=writer", "steps.explored.k=6"]
        folder = run(made, tmp_path, "self_improve", model("writer", server), *small)
    played: dict[str, Trajectory] = {each.trajectory_id: each for each in rows(folder / "explored")}
    sampled = Table.open(folder / "explored").manifest.config["models"]["actor"]["entry"]
    assert Table.open(folder / "judged").manifest.config["models"]["judge1"]["entry"] == sampled == "actor"
    passed: dict[str, set[str]] = {"judge": set(), "check_rules": set()}
    for verdict in [*rows(folder / "judged"), *rows(folder / "ruled")]:
        if verdict.passed and verdict.name in passed:
            passed[verdict.name].add(verdict.trajectory_id)
    own = {row.trajectory_id for row in rows(folder / "own_rows")}
    assert own == passed["judge"] & passed["check_rules"]
    assert {played[each].outcome.status for each in own} == {"success", "failure"}, "no environment decides"
    imagined: dict[str, Trajectory] = {each.trajectory_id: each for each in rows(folder / "imagined")}
    assert not {each.environment_id for each in imagined.values()} & {each.environment_id for each in played.values()}
    for each in imagined.values():
        seen = [item for item in each.content if isinstance(item, TextObservation) and item.turn > 0]
        assert seen
        assert all(item.synthetic for item in seen)
    for row in rows(folder / "imagined_rows"):
        actions = [item for item in imagined[row.trajectory_id].content if isinstance(item, Action)]
        assert sum(message.train for message in row.messages) == len(actions)
        assert not any(message.train for message in row.messages if message.role != "assistant")
    mixed = Counter(row.trajectory_id in own for row in rows(folder / "tuned_rows"))
    assert mixed[True] == mixed[False] > 0
