"""``imagine`` as a stage, by a server that writes faulty runs to order: what is kept, repaired and dropped, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Action, MessageAction, Trajectory
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments import DESCRIBED
from agentmill.synthesis.policies.policy import Conversation, Turn, Unreachable
from tests.builders import agent_message, instruction, seen, tool, trajectory
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, Reply, text
from tests.pipelines.engine.stages import bytes_of, dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage
from tests.ruin_environment import SPEC, Sayer, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
CALL = {"name": "right", "arguments": {}}
SHOP = EnvironmentSpec(
    environment_id="shop",
    family=DESCRIBED,
    name="shop",
    source="You keep a shop.",
    tools=[tool("sell", it={"type": "string"})],
)


def written(*turns: Any, status: str = "success") -> str:
    return json.dumps({"turns": turns, "ending": {"status": status}})


def turn(action: Any, **fields: Any) -> dict[str, Any]:
    return {"thought": "On.", "action": action, "observation": "The number is one more.", **fields}


RIGHT = turn(CALL)
FAULTY = {
    "malformed": written(RIGHT, RIGHT)[:-60],
    "undeclared_tool": written(RIGHT, turn({"name": "up", "arguments": {}})),
    "wrong_arguments": written(RIGHT, turn({"name": "right", "arguments": {"far": True}})),
    "no_observation": written(RIGHT, turn(CALL, observation="")),
    "illegal_action": written(RIGHT, turn("Hello?")),
}
"""Each is faulty at its second turn, for a reason of its own."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Path]:
    """To 4 from 2: for each fault a task where it is repaired and one where it is not, and two without any."""
    kinds = [f"{reason}.{fate}" for reason in FAULTY for fate in ("once", "always")] + ["well.one", "well.two"]
    tasks = [
        msgspec.structs.replace(ruin_task(2, 4, task_id=kind), instruction=f"Do [{kind}] now.", max_turns=8)
        for kind in kinds
    ]
    write_table(tmp_path / "tasks", [tasks[:6], tasks[6:]], Task)
    write_table(tmp_path / "environments", [[SPEC, SHOP]], EnvironmentSpec)
    with registered():
        yield tmp_path


def answer(body: dict[str, Any]) -> Reply:
    """What the task says; behind the first turn, where that stands, what is left to do."""
    asked = body["messages"][-1]["content"]
    reason, _, fate = asked.partition("[")[2].partition("]")[0].partition(".")
    if reason == "well":
        return text(f"Here you are:\n```json\n{written(RIGHT, RIGHT)}\n```")
    if "These first turns are written" not in asked:
        return text(FAULTY[reason])
    return text(written(RIGHT) if fate == "once" else written(turn(CALL, observation=None)))


def served(server: FakeOpenAi) -> dict[str, ServedModel]:
    config = ModelConfig(policy="vllm", model="m", endpoints=[server.url])
    return {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model="m")])}


def test_every_run_ends_as_written_repaired_or_dropped_with_its_reason(world: Path) -> None:
    with FakeOpenAi(answer, with_tokens=True) as server:
        step = {"policy": "p", "scaffold": "tools", "check": "world", "repairs": 2, **ON}
        manifest = run(world, "imagine", "told", served(server), **step)
        asked = len(server.requests)
    assert manifest.counts == Counts(read=12, used=7, dropped=5, written=7)
    assert manifest.reasons == {"no_observation": 5}, "the last fault is the one that was not repaired"
    assert (manifest.metrics["repaired"], manifest.metrics["faults"], manifest.metrics["success"]) == (5, 5, 0)
    assert asked == 2 * 1 + 5 * 2 + 5 * 3
    rows: list[Trajectory] = rows_of(world / "told")
    found = Counter(tuple((fault["turn"], fault["reason"]) for fault in row.extra["repaired"]) for row in rows)
    assert found == {(): 2, **{((2, reason),): 1 for reason in FAULTY}}
    for row in rows:
        assert [item.turn for item in row.content] == [0, 0, 1, 1, 2, 2]
        assert [item.synthetic for item in row.content] == [False, False, False, True, False, True]
        assert [item.tokens for item in row.content if isinstance(item, Action)] == [None, None]
        assert (row.outcome.status, row.extra["claim"]["status"]) == ("unknown", "success")
    for letter in dropped_of(world / "told"):
        history = letter.input["history"]
        assert (letter.blamed, len(history)) == ("generator", 3)
        assert [fault["turn"] for fault in history] == [2, 2, 2]
        assert history[0]["reason"] in FAULTY
    judged = run(world, "check_outcome", "judged", of="told", **ON)
    assert judged.metrics == {"scored": 7.0, "passed": 7.0}, "carried out in the real world, all of them win"


def test_without_repairs_each_fault_has_its_own_reason(world: Path) -> None:
    with FakeOpenAi(answer) as server:
        step = {"policy": "p", "scaffold": "tools", "check": "world", "repairs": 0, **ON}
        manifest = run(world, "imagine", "told", served(server), **step)
    assert manifest.counts == Counts(read=12, used=2, dropped=10, written=2)
    assert manifest.reasons == dict.fromkeys(FAULTY, 2)


def test_rows_of_imagined_runs_train_the_agent_and_no_world_model(world: Path) -> None:
    with FakeOpenAi(answer) as server:
        run(world, "imagine", "told", served(server), policy="p", scaffold="tools", check="world", **ON)
    rows = run(world, "sft", "rows", **{"from": "told"})
    assert (rows.counts.used, rows.counts.written) == (7, 7)
    for row in rows_of(world / "rows"):
        assert [call.name for message in row.messages if message.train for call in message.tool_calls] == ["right"] * 2
    assert run(world, "world_model", "none", **{"from": "told"}).counts == Counts(read=7, used=0, dropped=7, written=0)


def test_a_world_in_words_and_earlier_runs_of_it(world: Path) -> None:
    """Simia: tools and seeds alone; nothing can be replayed, and the verifier says so."""
    seeds = [
        trajectory(
            f"seed{n}",
            task_id=f"seed{n}",
            generation=None,
            content=[instruction(f"Sell hat {n}."), agent_message("sold"), seen("Paid.", 1)],
        )
        for n in range(3)
    ]
    task = Task(task_id="hat", environment_id="shop", instruction="Sell hat 1 today.", split="train", max_turns=5)
    write_table(world / "seeds", [seeds], Trajectory)
    write_table(world / "hats", [[task]], Task)
    sold = written(turn({"name": "sell", "arguments": {"it": "hat"}}), {"action": "It is sold."})
    with FakeOpenAi([text(sold)]) as server:
        step = {"policy": "p", "scaffold": "tools", "from": "seeds", "shots": 1, "k": 2, **ON, "tasks": "hats"}
        manifest = run(world, "imagine", "told", served(server), **step)
        prompts = [body["messages"][-1]["content"] for body in server.requests]
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert all("Sell hat 1.\n> sold\nPaid." in prompt and "You keep a shop." in prompt for prompt in prompts)
    assert all('"name":"sell"' in prompt for prompt in prompts)
    judged = run(world, "check_outcome", "judged", of="told", **{**ON, "tasks": "hats"})
    assert (judged.counts.dropped, judged.reasons) == (2, {"world_error": 2})
    assert all("only described" in letter.detail for letter in dropped_of(world / "judged"))


def test_what_broke_off_goes_on_and_ends_the_same(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's server is gone after seven answers, in the middle of a repair."""
    taken: list[int | None] = [0, None]

    async def writes(policy: Sayer, conversation: Conversation) -> Turn:
        if taken[1] is not None and taken[0] >= taken[1]:  # type: ignore[operator]
            raise Unreachable("nobody is there")
        taken[0] += 1  # type: ignore[operator]
        body = {"messages": [{"content": conversation.content[0].content}]}  # type: ignore[union-attr]
        return Turn(actions=[MessageAction(content=(answer(body).chat or {})["message"]["content"])])

    monkeypatch.setattr(Sayer, "act", writes)
    step = {"policy": "p", "scaffold": "tools", "check": "world", "window": 1, **ON}
    writer = {"actor": model("sayer", turns=["x"])}
    run(world, "imagine", "whole", writer, **step)
    needed, taken[:] = taken[0], [0, 7]
    with user_error("endpoint-unreachable"):
        run(world, "imagine", "broken", writer, **step)
    taken[1] = None
    run(world, "imagine", "broken", writer, **step)
    assert bytes_of(world / "broken") == bytes_of(world / "whole")
    assert taken[0] <= needed + 8, "only what was in flight, and what was dropped, is asked again"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"shots": 2}, ("rule-broken", "shots", "from")),
        ({"verdict": "judge"}, ("rule-broken", "verdict: judge", "where: success")),
        ({"verdicts": "v", "where": "success", "verdict": "judge"}, ("rule-broken", "verdicts", "from")),
        ({"max_invalid": 3}, ("rule-broken", "max_invalid")),
        ({"repairs": -1}, ("invalid-value", "repairs")),
        ({"wold": 1}, ("unknown-key", "wold")),
    ],
)
def test_mistakes_are_found_before_anything_runs(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        stage("imagine", policy="p", **ON, **parameters)


def test_an_expert_that_errs_stands_in_for_a_writer_by_acting(world: Path) -> None:
    step = job(world, "imagine", "acted", {"actor": model("expert", mistakes=0.0)}, policy="p", **ON)
    step.parameters.check_models({"actor": model("expert", mistakes=0.0).config})
    manifest = step.run()
    assert manifest.counts == Counts(read=12, used=12, dropped=0, written=12)
    for row in rows_of(world / "acted"):
        assert row.outcome.status == "success"
        assert not any(item.synthetic for item in row.content)
    assert step.parameters.notes(manifest) == [
        "warning: an expert that errs stands in for actor: it acts in the environments, and no observation is imagined"
    ]
    with user_error("key-not-for-this", "`expert` plans and cannot write trajectories"):
        step.parameters.check_models({"actor": model("expert").config})
