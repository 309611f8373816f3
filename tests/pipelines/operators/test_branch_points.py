"""``branch`` as IPR and Early Experience use it: continuations of an agent's own step, and alternatives that differ."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import MessageAction, Trajectory, Usage
from agentmill.synthesis.policies import POLICIES
from agentmill.synthesis.policies.policy import Conversation, PolicyError, Turn
from agentmill.synthesis.strategies.branch import first_actions
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import model, run
from tests.ruin_environment import SPEC, Gambler, registered, ruin_task

ON = {"policy": "p", "tasks": "tasks", "environments": "environments"}


def gambler(p: float) -> dict[str, Any]:
    """Goes right with probability ``p``."""
    return {"actor": model("gambler", turns=[str(p)])}


@pytest.fixture
def demonstrated(tmp_path: Path) -> Iterator[Path]:
    """Demonstrations that always go right: of 4, 3, 2 and 1 turns."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        run(tmp_path, "sample", "demonstrations", gambler(1.0), **ON)
        yield tmp_path


def turns_of(trajectory: Trajectory) -> list[int]:
    return sorted(first_actions(trajectory.content))


@pytest.mark.parametrize("depth", ["end", 1])
def test_continuations_go_on_from_just_the_turn_after_a_branch(demonstrated: Path, depth: Any) -> None:
    """IPR: the agent's own first step is worth what follows it; no other turn of its episode needs continuations."""
    run(demonstrated, "branch", "explored", gambler(0.5), of="demonstrations", depth=depth, **ON)
    explored = {row.trajectory_id: row for row in rows_of(demonstrated / "explored")}
    going_on = {name for name, row in explored.items() if depth == 1 or turns_of(row)[-1] > row.branch_turn}
    ended = {name for name, row in explored.items() if row.outcome.terminated}
    going_on -= ended if depth == 1 else set()
    manifest = run(demonstrated, "branch", "tried", gambler(0.5), of="explored", turns="after_branch", k=5, **ON)
    assert manifest.counts.written == 5 * len(going_on) > 0
    assert manifest.reasons == ({"no_turn": len(explored) - len(going_on)} if len(going_on) < len(explored) else {})
    for row in rows_of(demonstrated / "tried"):
        assert row.branch_turn == explored[row.parent_id].branch_turn + 1
        assert turns_of(row)[: row.branch_turn - 1] == turns_of(explored[row.parent_id])[: row.branch_turn - 1]
    run(demonstrated, "step_value", "worth", method="mc", of="explored", branches="tried")
    samples = {(each.trajectory_id, each.item): each.n for each in rows_of(demonstrated / "worth")}
    for name in going_on:
        assert samples[name, first_actions(explored[name].content)[explored[name].branch_turn]] == 5
    if depth == "end":
        everywhere = run(demonstrated, "branch", "all", gambler(0.5), of="explored", k=5, **ON)
        assert everywhere.counts.written == 5 * sum(len(turns_of(row)) for row in explored.values())
        assert everywhere.counts.written > 3 * manifest.counts.written


def test_a_demonstration_has_no_turn_after_a_branch(demonstrated: Path) -> None:
    manifest = run(demonstrated, "branch", "none", gambler(0.5), of="demonstrations", turns="after_branch", **ON)
    assert manifest.reasons == {"no_turn": 4}


@pytest.mark.parametrize("depth", [1, "end"])
def test_alternatives_equal_to_what_was_recorded_or_to_a_sibling_are_dropped(demonstrated: Path, depth: Any) -> None:
    """Early Experience: what the expert did is no alternative to it, and one that stands twice is one."""
    branches = {"of": "demonstrations", "k": 4, "depth": depth, **ON}
    run(demonstrated, "branch", "plain", gambler(0.5), **branches)
    manifest = run(demonstrated, "branch", "distinct", gambler(0.5), **branches, distinct=True)
    plain, distinct = rows_of(demonstrated / "plain"), rows_of(demonstrated / "distinct")
    first: dict[tuple[str, int], list[Trajectory]] = defaultdict(list)
    for row in sorted(plain, key=lambda row: row.attempt):
        place = first_actions(row.content)[row.branch_turn]
        if row.content[place].content == "left":
            first[row.parent_id, row.branch_turn].append(row)
    assert {row.trajectory_id for row in distinct} == {rows[0].trajectory_id for rows in first.values()}
    equal = Counter({"equals_sibling": sum(len(rows) - 1 for rows in first.values())})
    equal["equals_recorded"] = len(plain) - sum(map(len, first.values()))
    assert manifest.reasons == {reason: n for reason, n in equal.items() if n}
    assert (manifest.counts.read, manifest.counts.used) == (40, len(distinct))
    letters = dropped_of(demonstrated / "distinct")
    assert {letter.input["trajectory_id"] for letter in letters} <= {row.parent_id for row in plain}
    assert {letter.blamed for letter in letters} == {"policy"}


class Paid(Gambler):
    """Each turn costs a dollar; with the probability that its second turn says there is none."""

    async def act(self, conversation: Conversation) -> Turn:
        if random.Random(conversation.seed + 1).random() < float(self._needed[0]):
            raise PolicyError("timeout", "no answer")
        right = random.Random(conversation.seed).random() < float(self._p)
        said = MessageAction(content="right" if right else "left")
        return Turn(actions=[said], usage=Usage(cost_usd=1.0))


def test_a_branch_that_is_dropped_ends_with_its_first_turn_and_its_cost_is_reported(
    demonstrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES._entries, "paid", f"{__name__}:Paid")
    actor = {"actor": model("paid", turns=["0.5", "0.3"])}
    manifest = run(demonstrated, "branch", "b", actor, of="demonstrations", k=4, distinct=True, depth=1, **ON)
    assert manifest.counts.read == 40
    assert {"timeout", "equals_recorded", "equals_sibling"} == set(manifest.reasons)
    assert manifest.metrics["cost_usd"] == manifest.counts.written > 0, "a branch that fails leaves its siblings"
    assert manifest.metrics["lost_cost_usd"] == manifest.reasons["equals_recorded"] + manifest.reasons["equals_sibling"]
