"""Episodes by experts and scripts, verdicts on them, selections, and the training rows they become."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout_operation import Actors, Rollout, SideTables
from agentmill.pipelines.serving.endpoints import Endpoint, free_ports
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.tables import Counts
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from agentmill.synthesis.rollouts import blocking_env as apart
from agentmill.synthesis.rollouts.blocking_env import Pool
from agentmill.synthesis.strategies.sample import Sample
from tests import fake_openai
from tests.builders import trajectory, verdict
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.operators.steps import job, model, run, stage

ON = {"tasks": "tasks", "environments": "environments"}
PLANNER = {"actor": model("expert")}
BABBLER = {"actor": model("scripted", turns=["dance"] * 40)}


def replaced(record: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(record, **changes)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Two environments, four tasks: two to train on, one held out, one without its environment."""
    (spec, task), (other, unseen) = PddlEnvironment.examples()
    tasks = [
        replaced(task, task_id="a", split="train"),
        replaced(unseen, task_id="b", split="train"),
        replaced(task, task_id="c", split="held_out_tasks"),
        replaced(task, task_id="d", split="stray", environment_id="nowhere"),
    ]
    write_table(tmp_path / "tasks", [tasks], Task)
    write_table(tmp_path / "environments", [[spec], [other]], EnvironmentSpec)
    return tmp_path


@pytest.mark.parametrize("family", ["toolbox", "codegym", "interpreter"])
def test_admissible_actions_are_refused_where_a_family_does_not_list_them(family: str, world: Path) -> None:
    (spec, _), _ = PddlEnvironment.examples()
    write_table(world / "mixed", [[spec, replaced(spec, environment_id="other", family=family)]], EnvironmentSpec)
    order = job(world, "sample", "s", PLANNER, policy="p", tasks="tasks", environments="mixed", constrain="admissible")
    error = ("actions-not-listed", "constrain: admissible", f"'{family}'")
    with user_error(*error):
        order.parameters.check_inputs(order.inputs)
    with user_error(*error):
        asyncio.run(order.parameters.operation(order.inputs, order.context).open())  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", sorted(ENVIRONMENTS))
def test_tasks_of_every_family_can_be_answered_without_tools(family: str, tmp_path: Path) -> None:
    examples = ENVIRONMENTS.load(family).examples()
    write_table(
        tmp_path / "environments", [list({spec.environment_id: spec for spec, _ in examples}.values())], EnvironmentSpec
    )
    write_table(tmp_path / "tasks", [[task for _, task in examples]], Task)
    manifest = run(tmp_path, "sample", "answers", BABBLER, policy="p", tools="none", k=2, **ON)
    assert manifest.counts == Counts(
        read=2 * len(examples), used=2 * len(examples), dropped=0, written=manifest.counts.written
    )
    for row in rows_of(tmp_path / "answers"):
        assert [getattr(item, "content", "") for item in row.content][1:] == ["dance"]
        assert (row.tools, row.outcome.status) == ([], "unknown")


def test_an_expert_has_no_words_to_answer_with() -> None:
    step = stage("sample", policy="p", tools="none", **ON)
    with user_error("key-not-for-this", "tools: none", "expert"):
        step.check_models({"actor": PLANNER["actor"].config})
    step.check_models({"actor": BABBLER["actor"].config})


def test_thoughts_need_a_scaffold_that_has_room_for_them() -> None:
    thinker = ModelConfig(policy="expert", thoughts="plan")
    with user_error("needs-another-key", "scaffold: react"):
        stage("expert", policy="p", **ON).check_models({"actor": thinker})
    stage("expert", policy="p", scaffold="react", **ON).check_models({"actor": thinker})
    stage("expert", policy="p", scaffold="tools", **ON).check_models({"actor": thinker})


def test_admissible_actions_are_for_families_that_list_them(world: Path) -> None:
    given = {"constrain": "admissible", "split": "train", "max_turns": 1, **ON}
    order = job(world, "sample", "s", BABBLER, policy="p", **given)
    order.parameters.check_inputs(order.inputs)
    assert order.run().counts.used == 2


def test_experts_succeed(world: Path) -> None:
    manifest = run(world, "expert", "shown", PLANNER, policy="planner", split="train", **ON)
    assert manifest.counts == Counts(read=2, used=2, dropped=0, written=2)
    assert manifest.metrics["success"] == manifest.metrics["episodes"] == 2
    assert manifest.metrics["turns"] > 2
    assert {row.task_id for row in rows_of(world / "shown")} == {"a", "b"}
    assert {row.outcome.status for row in rows_of(world / "shown")} == {"success"}


async def test_worlds_that_were_given_up_are_closed_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, closed = Pool(1), threading.Event()
    monkeypatch.setattr(apart, "POOL", pool)
    busy = pool.submit(lambda: time.sleep(0.3) or closed.set())
    while not busy.running():
        await asyncio.sleep(0.01)
    pool.abandon(busy)
    actors = Actors(policies={}, split=None, share=1.0, seed=0, round=0)
    rollout = Rollout("sample", Sample(), SideTables(environments=Lookup([], EnvironmentSpec)), actors, 1)
    await rollout.close()
    assert closed.is_set()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"split": "trian"},
            ("split-empty", "trian", "1.0", "2"),
        ),
        ({"share": 1e-9}, ("split-empty", "share")),
        ({"split": "held_out_tasks", "share": 1e-9}, ("split-empty", "held_out_tasks")),
    ],
)
def test_a_choice_that_leaves_nothing_to_play_is_refused(
    world: Path, given: dict[str, Any], expected: tuple[str, ...]
) -> None:
    step = job(world, "sample", "played", BABBLER, policy="babbler", **given, **ON)
    with user_error(*expected):
        step.parameters.check_inputs(step.inputs)


def test_only_tasks_of_the_split_are_read(world: Path) -> None:
    assert (
        run(world, "sample", "held_out", BABBLER, policy="babbler", split="held_out_tasks", k=3, **ON).counts.read == 3
    )
    with user_error("nothing-to-do", "none"):
        run(world, "sample", "none", BABBLER, policy="babbler", split="trian", **ON)


def test_an_episode_without_its_environment_is_dropped(world: Path) -> None:
    manifest = run(world, "sample", "all", BABBLER, policy="babbler", k=2, **ON)
    assert manifest.counts == Counts(read=8, used=6, dropped=2, written=6)
    assert {(letter.input_id, letter.blamed) for letter in dropped_of(world / "all")} == {
        ("d/0", "environment"),
        ("d/1", "environment"),
    }


def test_a_policy_that_gives_up_is_blamed(world: Path) -> None:
    silent = {"actor": model("scripted", turns=["dance"])}
    manifest = run(world, "sample", "short", silent, policy="silent", split="train", max_invalid=None, **ON)
    assert manifest.reasons == {"script_ended": 2}
    assert {letter.blamed for letter in dropped_of(world / "short")} == {"policy"}
    assert {letter.stage for letter in dropped_of(world / "short")} == {"sample"}


def test_what_a_dropped_episode_cost_is_told(world: Path) -> None:
    with FakeOpenAi([fake_openai.text("dance"), fake_openai.raw(b"not JSON")]) as server:
        config = ModelConfig(policy="openai", model="m", endpoints=[server.url], max_retries=0)
        half = {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=server.url, model="m")])}
        manifest = run(world, "sample", "half", half, policy="half", split="train", window=1, max_turns=9, **ON)
    assert manifest.reasons == {"malformed": 2}
    assert manifest.metrics.keys() == {"lost_prompt_tokens", "lost_completion_tokens", "lost_cost_usd"}
    assert manifest.metrics["lost_completion_tokens"] == len("dance</>")  # of the only answer that could be read


def test_a_model_that_is_not_there_ends_the_stage_and_no_episode(world: Path) -> None:
    [port] = free_ports(1)
    there = f"http://127.0.0.1:{port}/v1"
    config = ModelConfig(policy="openai", model="m", endpoints=[there], patience_s=0.0, max_retries=0)
    absent = {"actor": ServedModel(config=config, endpoints=[Endpoint(base_url=there, model="m")])}
    parameters = {"policy": "absent", "split": "train", "max_turns": 1, **ON}
    with user_error("endpoint-unreachable"):
        run(world, "sample", "played", absent, **parameters)
    assert not (world / "played" / "manifest.json").exists()
    with FakeOpenAi([fake_openai.text("dance")], port=port):
        assert run(world, "sample", "played", absent, **parameters).counts == Counts(
            read=2, used=2, dropped=0, written=2
        )


def test_ids_do_not_depend_on_k_nor_on_the_window(world: Path) -> None:
    run(world, "sample", "one", BABBLER, policy="babbler", split="train", k=1, **ON)
    run(world, "sample", "three", BABBLER, policy="babbler", split="train", k=3, window=1, **ON)
    one, three = ({row.trajectory_id for row in rows_of(world / name)} for name in ("one", "three"))
    assert one < three
    assert len(three) == 6
    assert job(world, "sample", "three", BABBLER, policy="other", split="train", k=3, window=9, **ON).finished()


def entry(name: str, *turns: str) -> dict[str, ServedModel]:
    """An entry of ``models``; the name of the model is the same in all of them."""
    return {"actor": ServedModel.of(ModelConfig(policy="scripted", model="llama", turns=list(turns)).named(name))}


def test_two_entries_with_one_model_name_have_other_ids(world: Path) -> None:
    given: Any = {"policy": "actor", "split": "train", "seed": 3, "max_invalid": 1, **ON}
    run(world, "sample", "danced", entry("dancer", "dance"), **given)
    run(world, "sample", "sung", entry("singer", "sing"), **given)
    ids = {row.trajectory_id for name in ("danced", "sung") for row in rows_of(world / name)}
    assert len(ids) == 4
    verdicts = run(world, "check_outcome", "verdicts", of=["danced", "sung"], **ON)
    assert verdicts.counts.written == 4
    assert {row.trajectory_id for row in rows_of(world / "verdicts")} == ids
    with user_error("made-differently", "models.actor.entry: dancer -> singer"):
        job(world, "sample", "danced", entry("singer", "dance"), **given).finished()


def test_tables_that_share_a_trajectory_are_refused(world: Path) -> None:
    given: Any = {"policy": "actor", "split": "train", "seed": 3, "max_invalid": 1, **ON}
    for name in ("one", "two"):
        run(world, "sample", name, entry("dancer", "dance"), **given)
    both = {"of": ["one", "two"]}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("check_outcome", {**both, **ON}),
        ("filter", {**both, "where": [{"field": "attempt", "equals": 0}]}),
        ("pick", both),
        ("sft", {"from": ["one", "two"]}),
        ("trajectory_pairs", {"from": ["one", "two"]}),
        ("revise", {**both, **ON, "policy": "actor"}),
    ]
    for operator, parameters in steps:
        step = job(world, operator, "made", entry("dancer", "dance"), **parameters)
        for begin in (step.finished, step.run):
            with user_error("record-twice", "/one", "/two", "Trajectory", "2"):
                begin()
    assert not (world / "made").exists()


def test_tasks_of_two_tables_are_played_once_each(world: Path) -> None:
    write_table(world / "more", [[row for row in rows_of(world / "tasks") if row.task_id == "b"]], Task)
    with user_error("record-twice", "/tasks", "/more", "Task", "1"):
        run(world, "sample", "s", BABBLER, policy="p", tasks=["tasks", "more"], environments="environments")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_turns": 3}, ("made-differently", "max_turns: null -> 3")),
        ({"seed": 8}, ("made-differently", "seed: 5 -> 8")),
        ({"k": 2}, ("made-differently", "k: 1 -> 2")),
    ],
)
def test_what_decides_the_episodes_is_in_the_digest(
    changes: dict[str, int], expected: tuple[str, ...], world: Path
) -> None:
    run(world, "sample", "one", BABBLER, policy="babbler", split="train", **ON)
    with user_error(*expected):
        job(world, "sample", "one", BABBLER, policy="babbler", split="train", **{**ON, **changes}).finished()
    with user_error("made-differently", "models.actor"):
        job(world, "sample", "one", PLANNER, policy="babbler", split="train", **ON).finished()


def test_sampling_of_the_step_goes_before_that_of_the_model(world: Path) -> None:
    asked = model("openai", model="m", endpoints=["http://127.0.0.1:1/v1"], sampling={"temperature": 0.2, "top_p": 0.9})
    step = job(world, "sample", "s", {"actor": asked}, policy="asked", temperature=0.7, max_tokens=9, **ON)
    settled = step.parameters.provenance_config(step.context)
    assert settled["models"]["actor"]["sampling"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 9}
    assert "temperature" not in settled
    assert "endpoints" not in str(settled)


def test_a_server_of_ours_is_part_of_what_decides_the_episodes(world: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")

    def settled(**server: Any) -> Any:
        model = ServedModel(config=ModelConfig(policy="vllm", model="m", server=ServerConfig(**server)))
        step = job(world, "sample", "s", {"actor": model}, policy="actor", **ON)
        return step.parameters.provenance_config(step.context)["models"]["actor"]

    plain, given = settled(), settled(chat_template=str(template))
    assert "server" not in settled(max_num_seqs=4, port=8000, lora={"a": "b"}), "that changes no answer"
    assert settled(max_model_len=64)["server"] == {"max_model_len": 64}
    assert settled(tool_call_parser="xlam", arguments=["--x"])["server"] == {
        "tool_call_parser": "xlam",
        "arguments": ["--x"],
    }
    assert given != plain
    template.write_text("{{ messages }} {{ tools }}")
    assert settled(chat_template=str(template)) != given
    copy = tmp_path / "other.jinja"
    copy.write_text("{{ messages }}")
    assert settled(chat_template=str(copy)) == given


def test_wrong_tables_are_refused(world: Path) -> None:
    with user_error("wrong-record-type", "EnvironmentSpec", "Task"):
        job(world, "sample", "s", BABBLER, policy="p", tasks="environments", environments="environments")
    with user_error("wrong-record-type", "EnvironmentSpec", "Task", "Trajectory"):
        job(world, "check_outcome", "v", of=["environments", "tasks"], **ON)
    with user_error("needs-another-key", "environments"):
        job(world, "admit", "t", of="tasks")


def test_a_table_twice_is_refused(world: Path) -> None:
    run(world, "expert", "shown", PLANNER, policy="planner", split="train", **ON)
    with user_error("given-twice"):
        run(world, "check_outcome", "v", of=["shown", "shown"], **ON)


def test_verdicts_on_both_kinds_of_episodes(world: Path) -> None:
    run(world, "expert", "shown", PLANNER, policy="planner", split="train", **ON)
    run(world, "sample", "tried", BABBLER, policy="babbler", split="train", k=2, **ON)
    manifest = run(world, "check_outcome", "verdicts", of=["shown", "tried"], **ON)
    assert manifest.counts == Counts(read=6, used=6, dropped=0, written=6)
    assert manifest.metrics == {"passed": 2.0, "scored": 6.0}
    shown = {row.trajectory_id for row in rows_of(world / "shown")}
    assert {row.trajectory_id for row in rows_of(world / "verdicts") if row.passed} == shown
    rows = run(world, "sft", "rows", **{"from": ["shown", "tried"]}, verdicts="verdicts", where="success")
    assert rows.counts == Counts(read=6, used=2, dropped=4, written=2)
    assert rows.reasons == {"not_success": 4}
    assert {row.trajectory_id for row in rows_of(world / "rows")} == shown
    failed = run(world, "sft", "failed", **{"from": ["shown", "tried"]}, verdicts="verdicts", where="failure")
    assert failed.reasons == {"not_failure": 2}


def test_a_trajectory_of_an_unknown_task_is_dropped(world: Path) -> None:
    write_table(world / "foreign", [[trajectory("t1", task_id="zzz"), trajectory("t2", task_id=None)]], Trajectory)
    manifest = run(world, "check_outcome", "verdicts", of="foreign", **ON)
    assert manifest.reasons == {"no_task": 2}


def test_a_filter_keeps_its_reasons(world: Path) -> None:
    rows = [trajectory(f"t{i}") for i in range(4)]
    write_table(world / "trajectories", [rows], Trajectory)
    said = [
        verdict("t0"),
        verdict("t1", passed=False),
        replaced(verdict("t2"), status="unscored", score=None, passed=None),
    ]
    write_table(world / "verdicts", [said], Verdict)
    where = [{"verdict": "check_outcome", "passed": True}, {"field": "split", "equals": "train"}]
    manifest = run(world, "filter", "chosen", of="trajectories", verdicts="verdicts", where=where)
    assert manifest.counts == Counts(read=4, used=4, dropped=0, written=4)
    assert manifest.metrics == {"kept": 1.0, "left_out.check_outcome": 3.0}
    kept = {row.trajectory_id: (row.kept, row.reason) for row in rows_of(world / "chosen")}
    assert kept["t0"] == (True, None)
    assert kept["t1"] == kept["t2"] == kept["t3"] == (False, "check_outcome")
    exported = run(world, "sft", "rows", **{"from": "trajectories"}, selections="chosen")
    assert exported.counts == Counts(read=4, used=1, dropped=3, written=1)
    assert exported.reasons == {"not_selected": 3}
    unscored = run(world, "sft", "scored", **{"from": "trajectories"}, verdicts="verdicts", where="success")
    assert unscored.reasons == {"not_success": 1, "unscored": 2}


def test_a_trajectory_without_loss_is_dropped(world: Path) -> None:
    write_table(world / "trajectories", [[trajectory("t0", content=trajectory("t0").content[:2])]], Trajectory)
    assert run(world, "sft", "rows", **{"from": "trajectories"}).reasons == {"no_loss": 1}


def test_where_needs_verdicts(world: Path) -> None:
    with user_error("rule-broken", "where: success", "verdicts"):
        job(world, "sft", "rows", **{"from": "tasks"}, where="success")
