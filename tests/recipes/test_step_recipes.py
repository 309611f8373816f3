"""Recipes that choose steps by judges: each data half runs in small, and is what makes it that method."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from agentmill.schemas.records.rows import SftRow, UnpairedRow
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.views.tree import Spliced
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text
from tests.recipes.data_half import rows, run

REFLECTION = Spliced.model_fields["revision"].default


def judging(body: Any) -> Reply:
    """A judge that finds a third of the steps wrong, by their text, and names all steps critical, the last first."""
    asked = str(body["messages"][1]["content"])
    if most := re.search(r"Name at most \d+ of the (\d+) steps", asked):
        return text(json.dumps({"reasons": "so", "steps": list(range(int(most[1]), 0, -1))}))
    right = hashlib.sha256(asked.encode()).digest()[0] % 3 > 0
    return text(json.dumps({"reasons": "so", "verdict": right}))


def judged(made: Path, folder: Path, name: str, *overrides: str, model: str = "critic") -> Path:
    """As ``run``, with the judge of this file."""
    with FakeOpenAi(judging) as server:
        critic = f"models.{model}={{policy: openai, model: {MODEL}, endpoints: ['{server.url}']}}"
        return run(made, folder, name, critic, *overrides)


def commands(trajectory: Trajectory) -> list[str]:
    return [item.content for item in trajectory.content if isinstance(item, MessageAction)]


def path_to(trajectory: Trajectory, step: int) -> tuple[str | None, ...]:
    """The commands up to a step, which are its place in the tree of its task."""
    return trajectory.task_id, *commands(msgspec.structs.replace(trajectory, content=trajectory.content[: step + 1]))


def test_atlas_has_loss_on_at_most_three_steps_of_ten_and_all_are_critical(made: Path, tmp_path: Path) -> None:
    folder = judged(made, tmp_path, "atlas")
    played = {each.trajectory_id: each for each in rows(folder / "taught")}
    critical = Counter(each.trajectory_id for each in rows(folder / "judged/labels") if each.value == "critical")
    found: list[SftRow] = rows(folder / "rows")
    assert found
    for row in found:
        carrying = sum(message.train for message in row.messages)
        assert carrying == critical[row.trajectory_id] >= 1
        assert carrying <= 0.3 * len(commands(played[row.trajectory_id]))
    control = {
        row.trajectory_id: sum(message.train for message in row.messages) for row in rows(folder / "control_rows")
    }
    assert control == {row.trajectory_id: len(commands(played[row.trajectory_id])) for row in found}


def test_steve_learns_from_each_step_what_the_judge_found_of_it(made: Path, tmp_path: Path) -> None:
    folder = judged(made, tmp_path, "steve", "steps.loop.rounds=1") / "loop/round-01"
    passed = {(each.trajectory_id, each.item): each.passed for each in rows(folder / "judged") if each.item is not None}
    found: list[UnpairedRow] = rows(folder / "rows")
    assert {(row.trajectory_id, row.item): row.label for row in found} == passed
    assert {row.label for row in found} == {True, False}
    assert sum(len(commands(each)) for each in rows(folder / "explored")) == len(found)
    calibration = json.loads((folder / "calibration/calibration.json").read_text())
    assert calibration["n"] == len(rows(folder / "explored"))


def test_agent_r_turns_from_the_first_bad_step_to_the_good_path(made: Path, tmp_path: Path) -> None:
    small = ["steps.judged.judges=judge", "steps.loop.rounds=1"]
    folder = judged(made, tmp_path, "agent_r", *small, model="judge") / "loop/round-01"
    played = {each.trajectory_id: each for each in rows(folder / "searched")}
    won = {(each.task_id, *commands(each)) for each in played.values() if each.outcome.status == "success"}
    wrong = {
        path_to(played[each.trajectory_id], each.item)
        for each in rows(folder / "judged")
        if each.item is not None and each.passed is False
    }
    found: list[SftRow] = rows(folder / "revisions")
    assert len(found) >= 5
    for row in found:
        own = [message for message in row.messages if message.role == "assistant"]
        at = next(place for place, message in enumerate(own) if message.content == REFLECTION)
        said = [message.content for message in own]
        assert said[:at] == commands(played[row.trajectory_id])[:at]
        parted = max(place for place in range(at) if (row.task_id, *said[:place], *said[at + 1 :]) in won)
        bad = [(row.task_id, *said[:place]) in wrong for place in range(parted + 1, at + 1)]
        assert bad == [False] * (at - parted - 1) + [True], "it is cut after the first bad step"
        assert [message.train for message in own[: at + 1]] == [False] * at + [True], "the reflection carries loss"
    mixed = Counter(row.trajectory_id.startswith("general") for row in rows(folder / "revising_rows"))
    assert mixed[True] == 4 * mixed[False] > 0
