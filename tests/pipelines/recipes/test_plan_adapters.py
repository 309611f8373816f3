"""One adapter for each role: trained apart on one model, and served beside it by the names of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.train import TrainDpo, Training, start_of
from agentmill.pipelines.recipes.precheck import check_dry
from agentmill.pipelines.recipes.step import Step
from agentmill.pipelines.serving import servers as pool
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.servers import server_key
from agentmill.schemas.config import read_yaml
from agentmill.schemas.models import model_revision
from agentmill.schemas.tables import Table
from tests.builders import agent_message, instruction, seen, trajectory
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, text
from tests.model import tiny_model
from tests.pipelines.cli.tables import COMPARE, agentmill, places, write_environments, write_recipe
from tests.pipelines.recipes.test_plan import SAMPLE, SFT, TRAIN, WORLD, plan_of

ROLES = ("scout", "worker")
SCOUT, WORKER = ({**TRAIN, "lora": {"rank": 4, "merge": False}, "as": role} for role in ROLES)
ROWS = [*WORLD, SAMPLE, SFT]


def steps_of(folder: Path, *steps: dict[str, Any]) -> dict[str, Step]:
    return {step.name: step for step in plan_of(folder, [*ROWS, *steps]).steps}


def test_a_step_names_an_adapter_by_the_step_that_trained_it(tmp_path: Path) -> None:
    explore = [{**SAMPLE, "policy": name, "as": f"by_{name}"} for name in (*ROLES, "actor")]
    steps = steps_of(
        tmp_path,
        SCOUT,
        {**explore[0], "as": "early"},
        WORKER,
        *explore,
        {**SAMPLE, "policy": "actor@last", "as": "x"},
    )
    (early,) = steps["early"].models.values()
    assert (early.adapter, early.server.lora) == ("scout", {"scout": str(tmp_path / "run/scout")})
    scout, worker, base, last = (steps[name].models["actor"] for name in ("by_scout", "by_worker", "by_actor", "x"))
    assert [each.adapter for each in (scout, worker, base, last)] == ["scout", "worker", None, "worker"]
    assert {each.model for each in (scout, worker, base, last)} == {"bundled:smollm2-135m-instruct"}
    assert scout.server.lora == {role: str(tmp_path / "run" / role) for role in ROLES}
    assert len({server_key(each) for each in (scout, worker, base, last)}) == 1
    assert server_key(early) != server_key(scout)
    assert scout.display_name == "smollm2-135m-instruct+scout"


def test_adapters_of_a_fork_and_of_rounds_are_told_apart(tmp_path: Path) -> None:
    fork = {"operator": "fork", "routes": {"a": [WORKER], "b": [{**WORKER, "max_steps": 5}]}}
    ends = {name: {**SAMPLE, "policy": f"{name}/worker", "as": f"by_{name}"} for name in ("a", "b")}
    steps = steps_of(tmp_path, fork, *ends.values())
    assert [steps[f"by_{name}"].models["actor"].adapter for name in ends] == ["a/worker", "b/worker"]

    body = [SCOUT, {**SAMPLE, "policy": "scout", "as": "seen"}]
    steps = steps_of(tmp_path, {"operator": "iterate", "rounds": 2, "steps": body})
    second = steps["round-02/seen"].models["actor"]
    assert second.adapter == "round-02/scout"
    assert second.server.lora == {"round-02/scout": str(tmp_path / "run/round-02/scout")}


def test_a_whole_model_has_a_name_too(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, {**TRAIN, "lora": {"rank": 4}}, {**SAMPLE, "policy": "tuned", "as": "seen"})
    model = steps["seen"].models["actor"]
    assert (model.model, model.adapter, model.server.lora) == (str(tmp_path / "run/tuned"), None, {})


def test_a_training_goes_on_from_an_adapter_by_the_name_of_its_step(tmp_path: Path) -> None:
    more = {**TRAIN, "model": "scout", "lora": {"merge": False}, "as": "more"}
    ends = [{**SAMPLE, "policy": name, "as": f"by_{name}"} for name in ("more", "whole")]
    steps = steps_of(tmp_path, SCOUT, more, {**TRAIN, "model": "actor@last", "as": "whole"}, *ends)
    scout, whole = str(tmp_path / "run/scout"), str(tmp_path / "run/whole")
    for name in ("more", "whole"):
        start = steps[name].models["model"]
        assert (start.adapter, start.adapter_path) == ("scout", scout)
        assert start_of(start) == scout
    learned = steps["by_more"].models["actor"]
    assert (learned.adapter, learned.model) == ("more", "bundled:smollm2-135m-instruct")
    merged = steps["by_whole"].models["actor"]
    assert (merged.model, merged.adapter, merged.server.lora) == (whole, None, {})


def test_other_matrices_than_those_of_the_adapter_are_refused_while_planning(tmp_path: Path) -> None:
    more = {**TRAIN, "model": "scout", "lora": {"rank": 8}, "as": "more"}
    with user_error("lora-differs", "lora.rank is 8", "scout", "has 4"):
        check_dry(plan_of(tmp_path, [*ROWS, SCOUT, more]))


def test_an_adapter_of_another_model_is_refused_before_a_run(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 4}')
    entry: dict[str, Any] = {"policy": "vllm", "model": str(tiny_model()), "adapter": "polite"}
    entry["server"] = {"lora": {"polite": str(adapter)}}
    plan = plan_of(tmp_path, [*ROWS, {**TRAIN, "lora": {"merge": False}}], models={"actor": entry})
    with user_error("model-incomplete", adapter, "holds no weights"):
        check_dry(plan)
    (adapter / "adapter_model.safetensors").touch()
    (adapter / "training.json").write_text('{"base_revision": "0123456789abcdef"}')
    with user_error("base-model-differs", str(adapter), "0123456789abcdef", str(tiny_model())):
        check_dry(plan)
    (adapter / "training.json").write_text(f'{{"base_revision": "{model_revision(tiny_model())}"}}')
    check_dry(plan)


def test_a_training_from_an_adapter_is_one_of_the_model_of_its_entry(tmp_path: Path) -> None:
    more = {**TRAIN, "model": "scout", "lora": {"merge": False}, "as": "more"}
    step = steps_of(tmp_path, SCOUT, more)["more"]
    assert isinstance(step.parameters, Training)
    given = step.parameters._settings({}, step.models, tmp_path)
    assert (given["model"], given["base"]) == (str(tmp_path / "run/scout"), "bundled:smollm2-135m-instruct")

    scout = ModelConfig(policy="vllm", model="~/base", adapter="scout", server=ServerConfig(lora={"scout": "scout"}))
    whole = ModelConfig(policy="vllm", model=str(tiny_model()))
    preferring = TrainDpo.model_validate({"rows": "rows", "model": "actor", "reference": "scout"})
    given = preferring._settings({}, {"model": whole, "reference": scout}, tmp_path)
    assert (given["reference"], given["reference_base"]) == ("scout", str(Path("~/base").expanduser()))
    assert "base" not in given


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{**SCOUT, "as": "actor"}], ("name-taken", "actor")),
        ([{**SAMPLE, "policy": "worker", "as": "x"}, WORKER], ("unknown-name", "worker")),
    ],
)
def test_mistakes(tmp_path: Path, steps: list[dict[str, Any]], message: tuple[str, ...]) -> None:
    with user_error(*message):
        plan_of(
            tmp_path, [*ROWS, *steps], models={"actor": {"policy": "vllm", "model": "bundled:smollm2-135m-instruct"}}
        )


@pytest.mark.parametrize("lora", [{"dora": True}, {"modules_to_save": ["embed_tokens"]}])
def test_an_adapter_that_vllm_does_not_serve_is_refused_where_a_later_step_asks_for_it(
    tmp_path: Path, lora: dict[str, Any]
) -> None:
    scout = {**SCOUT, "lora": {**SCOUT["lora"], **lora}}
    steps = steps_of(tmp_path, scout, WORKER, {**SAMPLE, "policy": "worker", "as": "seen"})
    (seen_by,) = steps["seen"].models.values()
    assert list(seen_by.server.lora) == ["worker"]
    (kind,) = lora
    with user_error("model-of-wrong-kind", "'scout'", kind, "set lora.merge: true"):
        steps_of(tmp_path, scout, {**SAMPLE, "policy": "scout", "as": "seen"})
    merged = {**scout, "lora": {**scout["lora"], "merge": True}}
    assert steps_of(tmp_path, merged, {**SAMPLE, "policy": "scout", "as": "seen"})


def test_a_recipe_trains_one_adapter_for_each_role_and_plays_them_all_on_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_environments(tmp_path)
    talk = [
        *(instruction(), agent_message("Look in the box.", 1, agent="ann", role="scout")),
        *(agent_message("look box", 2, agent="bob", role="worker"), seen("a key", 2)),
        agent_message("Found it.", 3, agent="ann", role="scout"),
    ]
    seed_table(tmp_path / "talks", [trajectory(f"t{number}", content=talk) for number in range(2)])
    rows = [{"operator": "sft", "from": "talks", "role": role, "as": f"{role}_rows"} for role in ROLES]
    short = {"max_steps": 1, "batch_size": 1}
    trainings = [each | short | {"rows": f"{each['as']}_rows"} for each in (SCOUT, WORKER)]
    compared = {"base": "actor", **{role: role for role in ROLES}}
    evaluate = {**COMPARE, "models": compared, "constrained": [], "splits": ["held_out_tasks"], "max_turns": 1}
    recipe = write_recipe(
        tmp_path,
        *(*rows, *trainings, evaluate),
        models={"actor": {"policy": "vllm", "model": str(tiny_model())}},
        data={**places(tmp_path), "talks": str(tmp_path / "talks")},
    )
    served: list[ModelConfig] = []
    with FakeOpenAi([text("look")], with_tokens=True) as server:

        @contextmanager
        def serve(config: ModelConfig, _: Path, __: set[str]) -> Iterator[list[Endpoint]]:
            served.append(config)
            yield [Endpoint(base_url=server.url, model=config.acting_name)]

        monkeypatch.setattr(pool, "serve", serve)
        assert agentmill("run", recipe) == 0
        base = tiny_model().name
        assert [request["model"] for request in server.requests] == [base] * 2 + ["scout"] * 2 + ["worker"] * 2
    run = tmp_path / "run"
    assert [config.server.lora for config in served] == [{role: str(run / role) for role in ROLES}]
    for role in ROLES:
        assert (run / role / "adapter_config.json").is_file()
        assert read_yaml(run / f"trainings/{role}/config.yaml")["lora"] == {"rank": 4, "merge": False}
        played = list(Table.open(run / f"evaluation/held_out_tasks/{role}/trajectories").rows())
        assert {(each.generation.model, each.generation.revision) for each in played} == {
            (f"{base}+{role}", f"{model_revision(tiny_model())}+{model_revision(run / role)}")
        }
