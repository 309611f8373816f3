"""``simulate`` as a step: what is kept, dropped and counted, what it costs at most, and how its share is bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments import DESCRIBED
from agentmill.synthesis.policies.cost import Prices
from tests.builders import agent_message, instruction, seen, tool, trajectory
from tests.errors import user_error
from tests.fake_openai import MODEL, FakeOpenAi, Reply, text
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import model, run, stage
from tests.ruin_environment import SPEC, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}
SHOP = EnvironmentSpec(
    environment_id="shop", family=DESCRIBED, name="shop", source="You keep a shop.", tools=[tool("sell")]
)
EXPERTS = {"actor": model(), "simulator": model()}


def answer(observation: str, **fields: Any) -> str:
    return json.dumps({"observation": observation, "error": False, "changes": True, "end": "no", **fields})


def served(server: FakeOpenAi, **fields: Any) -> ServedModel:
    config = ModelConfig(policy="openai", model=MODEL, endpoints=[server.url], **fields)
    return ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model=MODEL)])


@pytest.fixture
def ruin(tmp_path: Path) -> Iterator[Path]:
    """Five tasks, and two in an environment that is only described."""
    tasks = [ruin_task(2, 4, task_id=f"task{n}") for n in range(5)]
    sales = [Task(task_id=f"sale{n}", environment_id="shop", instruction="Sell.", max_turns=3) for n in range(2)]
    write_table(tmp_path / "tasks", [tasks], Task)
    write_table(tmp_path / "sales", [sales], Task)
    write_table(tmp_path / "environments", [[SPEC, SHOP]], EnvironmentSpec)
    with registered():
        yield tmp_path


def test_episodes_are_counted_and_have_no_outcome(ruin: Path) -> None:
    manifest = run(ruin, "simulate", "played", EXPERTS, policy="p", simulator="s", k=2, **ON)
    assert manifest.counts == Counts(read=10, used=10, dropped=0, written=10)
    assert (manifest.metrics["answers.asked"], manifest.metrics["claimed_success"]) == (20, 10)
    assert manifest.metrics["success"] == 0
    rows: list[Trajectory] = rows_of(ruin / "played")
    assert {row.extra["simulator"] for row in rows} == {"expert"}
    assert {row.outcome.status for row in rows} == {"unknown"}
    judged = run(ruin, "check_outcome", "judged", of="played", **ON)
    assert (judged.metrics["unscored"], judged.metrics["unscored.no_real_state"]) == (10, 10)
    assert {verdict.reason for verdict in rows_of(ruin / "judged")} == {"no_real_state"}
    assert run(ruin, "world_model", "futures", **{"from": "played"}).counts.written == 0


def test_a_simulator_behind_an_endpoint_is_asked_with_its_own_settings(ruin: Path) -> None:
    def plays(body: dict[str, Any]) -> Reply:
        return text(answer("Sold.", end="success"))

    with FakeOpenAi(plays) as server:
        simulator = served(server, sampling={"temperature": 0.4, "max_tokens": 99}, prices=Prices(input=1, output=1))
        models = {"actor": model("scripted", turns=["Take it."]), "simulator": simulator}
        step = {"policy": "p", "simulator": "s", "scaffold": "tools", "temperature": 0.9, **ON, "tasks": "sales"}
        manifest = run(ruin, "simulate", "played", models, **step)
        bodies = list(server.requests)
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert [(body["temperature"], body["max_tokens"]) for body in bodies] == [(0.4, 99)] * 2
    assert all("You keep a shop." in body["messages"][1]["content"] for body in bodies)
    assert [body["messages"][-1]["content"] for body in bodies] == ["Take it."] * 2
    assert all(body["response_format"]["json_schema"]["strict"] for body in bodies)
    assert manifest.metrics["cost_usd"] > 0
    judged = run(ruin, "check_outcome", "judged", of="played", **{**ON, "tasks": "sales"})
    assert judged.counts.dropped == 0, "nobody tries to make an environment that is only described"
    assert {verdict.reason for verdict in rows_of(ruin / "judged")} == {"no_real_state"}


def test_an_episode_whose_simulator_does_not_answer_well_is_dropped_with_the_answers(ruin: Path) -> None:
    with FakeOpenAi([text("Sold!")]) as server:
        models = {"actor": model("scripted", turns=["Take it."]), "simulator": served(server)}
        step = {"policy": "p", "simulator": "s", "scaffold": "tools", "retries": 1, **ON, "tasks": "sales"}
        manifest = run(ruin, "simulate", "played", models, **step)
        asked = len(server.requests)
    assert (manifest.counts, manifest.reasons) == (
        Counts(read=2, used=0, dropped=2, written=0),
        {"simulator_malformed": 2},
    )
    assert asked == 4
    letters = dropped_of(ruin / "played")
    assert {letter.blamed for letter in letters} == {"generator"}
    assert [each["text"] for letter in letters for each in letter.input["history"]] == ["Sold!"] * 4
    assert manifest.metrics["lost_prompt_tokens"] > 0


def test_recorded_trajectories_are_examples_for_the_simulator(ruin: Path) -> None:
    made = [
        trajectory(
            name,
            task_id=name,
            generation=None,
            content=[instruction(f"Sell {name}."), agent_message("sold"), seen("Paid.", 1)],
        )
        for name in ("one", "two")
    ]
    write_table(ruin / "seeds", [made], Trajectory)
    with FakeOpenAi([text(answer("Paid.", end="success"))]) as server:
        models = {"actor": model("scripted", turns=["Take it."]), "simulator": served(server)}
        step = {"policy": "p", "simulator": "s", "from": "seeds", "shots": 1, **ON, "tasks": "sales"}
        run(ruin, "simulate", "played", models, **step)
        prompts = [body["messages"][1]["content"] for body in server.requests]
    assert all("Sell one.\n> sold\nPaid." in prompt for prompt in prompts)
    assert not any("Sell two." in prompt for prompt in prompts)
    assert [row.extra["recalls"] for row in rows_of(ruin / "played")] == [["one"]] * 2


def test_the_share_of_simulated_trajectories_is_bounded_by_their_mark(ruin: Path) -> None:
    run(ruin, "sample", "real", EXPERTS | {"actor": model(mistakes=0.2)}, policy="p", k=4, **ON)
    run(ruin, "simulate", "played", EXPERTS, policy="p", simulator="s", k=4, **ON)
    simulated = {row.trajectory_id for row in rows_of(ruin / "played")}
    step = {"from": ["real", "played"], "size": 20, "quotas": [{"by": "extra.simulator", "share": 0.25}]}
    run(ruin, "mix", "mixed", **step)
    kept = {row.trajectory_id for row in rows_of(ruin / "mixed") if row.kept}
    assert len(kept) == 20
    assert len(kept & simulated) == 5
    for name in ("real", "played"):
        run(ruin, "sft", f"{name}_rows", **{"from": name})
    rows = {"from": ["real_rows", "played_rows"], "size": 20, "trajectories": ["real", "played"]}
    run(ruin, "mix", "mixed_rows", **rows, quotas=[{"by": "trajectory.extra.simulator", "at_most": 3}])
    assert sum(row.trajectory_id in simulated for row in rows_of(ruin / "mixed_rows")) == 3
    where = [{"field": "extra.simulator", "equals": None}]
    run(ruin, "filter", "kept", of=["real", "played"], where=where)
    assert {row.trajectory_id for row in rows_of(ruin / "kept") if not row.kept} == simulated


def test_the_calls_of_both_models_are_bounded() -> None:
    tasks = {"tasks": Rows(n=10, turns=8, plan=3), "environments": Rows(n=2)}
    vllm = ModelConfig(policy="vllm", model="bundled:smollm2-135m-instruct")
    step = stage("simulate", policy="p", simulator="s", k=2, retries=3, max_turns=5, **ON)
    found = step.bounds(tasks, {"actor": vllm, "simulator": vllm})
    assert (found.episodes, found.asked["actor"].calls, found.asked["simulator"].calls) == (20, 100, 400)
    planner = step.bounds(tasks, {"actor": ModelConfig(policy="expert"), "simulator": vllm})
    assert planner.asked["simulator"].calls == 20 * 3 * 4


def test_what_is_asked_stays_within_the_bounds(ruin: Path) -> None:
    """A simulator that contradicts itself every time but the last is asked as often as the bound says."""
    n = [0]

    def plays(body: dict[str, Any]) -> Reply:
        n[0] += 1
        return text(answer("On.", error=bool(n[0] % 3)))

    with FakeOpenAi(plays) as server:
        models = {"actor": model("scripted", turns=["right"] * 4), "simulator": served(server)}
        step = {"policy": "p", "simulator": "s", "max_turns": 4, "window": 1, **ON}
        manifest = run(ruin, "simulate", "played", models, **step)
        asked = len(server.requests)
    assert manifest.counts.written == 5
    found = stage("simulate", **step).bounds(
        {"tasks": Rows(n=5, turns=1000), "environments": Rows(n=2)},
        {role: each.config for role, each in models.items()},
    )
    assert asked == found.asked["simulator"].calls == 5 * 4 * 3
    assert manifest.metrics["answers.contradiction"] == 40


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, ("missing-key", "simulator")),
        ({"simulator": "s", "shots": 2}, ("rule-broken", "shots", "from")),
        ({"simulator": "s", "constrain": "admissible"}, ("rule-broken", "constrain")),
        ({"simulator": "s", "retries": -1}, ("invalid-value", "retries")),
        ({"simulator": "s", "results": "xml"}, ("invalid-value", "results")),
        ({"simulater": "s"}, ("unknown-key", "simulator")),
    ],
)
def test_mistakes_are_found_before_anything_runs(parameters: dict[str, Any], message: tuple[str, ...]) -> None:
    with user_error(*message):
        stage("simulate", policy="p", **ON, **parameters)


def test_a_simulated_environment_is_no_evaluation() -> None:
    given = {"models": {"a": "m"}, "tasks": "t", "environments": "e", "splits": ["test"]}
    with user_error("unknown-name", "rollout.operator"):
        stage("evaluate", **given, rollout={"operator": "simulate"})


def test_simulated_trajectories_are_not_branched(ruin: Path) -> None:
    run(ruin, "simulate", "played", EXPERTS, policy="p", simulator="s", **ON)
    manifest = run(ruin, "branch", "branched", {"actor": model()}, policy="p", of="played", **ON)
    assert manifest.reasons == {"imagined": 5}


def test_other_models_make_other_trajectories(ruin: Path) -> None:
    ids = []
    for n, name in enumerate(("s", "other")):
        config = ModelConfig(policy="expert")
        config._entry = name
        models = {"actor": model(), "simulator": ServedModel.of(config)}
        run(ruin, "simulate", f"played{n}", models, policy="p", simulator=name, **ON)
        ids.append({row.trajectory_id for row in rows_of(ruin / f"played{n}")})
    assert not ids[0] & ids[1]
    assert msgspec.structs.asdict(rows_of(ruin / "played0")[0])["generation"].strategy == "simulate"
