"""A run downloads its models from the Hub before its first step, and goes on with the commits that it began with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentmill.pipelines.operators.train import start_of
from agentmill.pipelines.recipes.estimate import estimate
from agentmill.pipelines.recipes.hub_models import uncached, with_hub_models
from agentmill.pipelines.recipes.plan import Plan, make_plan
from agentmill.pipelines.recipes.precheck import check_dry, check_run
from agentmill.pipelines.serving.model_folders import model_folder, model_path
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import model_revision
from tests.errors import user_error
from tests.fake_hub import FakeHub, direct, model_files
from tests.model import tiny_adapter, tiny_model
from tests.pipelines.recipes.test_plan import SAMPLE, SFT, TRAIN, WORLD, plan_of

# How huggingface_hub 2.4 hands large files to httpx2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class World(NamedTuple):
    hub: FakeHub
    folder: Path

    def plan(self, *steps: dict[str, Any], **actor: Any) -> Plan:
        given = {"policy": "vllm", "model": "org/tiny", **actor}
        return plan_of(self.folder, [*WORLD, SAMPLE, SFT, *steps], models={"actor": given})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hub = FakeHub()
    hub.push("org/tiny", model_files(tiny_model()))
    with hub.served() as address:
        direct(monkeypatch, address, tmp_path / "cache")
        yield World(hub, tmp_path)


def test_a_dry_run_says_what_would_be_downloaded(world: World) -> None:
    plan = world.plan(TRAIN)
    assert uncached(plan) == ["org/tiny"]
    found = check_dry(plan)
    assert any(line.endswith("model org/tiny would be downloaded from the Hub") for line in found.unchecked)
    assert "org/tiny would be downloaded from the Hub; the run says its size before" in estimate(plan).notes
    assert not world.hub.requests
    assert plan.steps[-1].models["model"].display_name == "tiny"


def test_a_run_stays_at_the_commits_that_it_began_with(world: World) -> None:
    commit = world.hub.branches["org/tiny"]["main"]
    printed: list[str] = []
    plan = with_hub_models(world.plan(TRAIN), printed.append)
    assert plan.revisions == {"org/tiny": commit}
    assert [f"downloading org/tiny@{commit}" in printed[0], printed[1:]] == [
        True,
        [f"org/tiny on the Hub is commit {commit}, and stays so in this run"],
    ]
    model = plan.steps[-1].models["model"]
    assert start_of(model) == f"org/tiny@{commit}"
    assert model.display_name == "tiny"
    assert model.scores is False
    assert model_revision(model_folder(str(model.model))) == model_revision(tiny_model())
    assert uncached(plan) == []

    plan.run_dir.mkdir()
    (plan.run_dir / "revisions.json").write_text(json.dumps(plan.revisions))
    world.hub.push("org/tiny", model_files(tiny_model()) | {"generation_config.json": b"{}"})
    world.hub.requests.clear()
    again = make_plan(plan.recipe)
    assert start_of(again.steps[-1].models["model"]) == f"org/tiny@{commit}"
    assert with_hub_models(again, printed.append) is again
    assert not world.hub.requests
    assert not [line for line in check_dry(again).unchecked if "Hub" in line]


def test_adapters_and_tokenizers_lie_on_the_hub_too(world: World) -> None:
    lora = world.hub.push("org/lora", model_files(tiny_adapter()))
    mixing = {"operator": "mix", "from": "rows", "tokenizer": "org/tiny", "as": "mixed"}
    train = {**TRAIN, "lora": {"merge": False}}
    acting = {"model": str(tiny_model()), "adapter": "a", "server": {"lora": {"a": "org/lora"}}}
    plan = world.plan(mixing, train, **acting)
    assert uncached(plan) == ["org/lora", "org/tiny"]
    plan = with_hub_models(plan, lambda _: None)
    steps = {step.name: step for step in plan.steps}
    commit = world.hub.branches["org/tiny"]["main"]
    assert steps["mixed"].parameters.tokenizer == f"org/tiny@{commit}"  # type: ignore[attr-defined]
    trained = steps["tuned"].models["model"]
    assert start_of(trained) == f"org/lora@{lora}"
    revision = model_revision(model_path(f"org/lora@{lora}"))
    assert trained.with_adapter("base") == f"base+{revision}"
    assert not list((world.folder / "cache/models--org--tiny").rglob("*.safetensors"))
    with user_error("lora-differs", "lora.rank is 3", "has 8"):
        check_dry(with_hub_models(world.plan({**TRAIN, "lora": {"rank": 3}}, **acting), lambda _: None))


def test_what_is_not_on_the_hub_is_told_with_its_step_before_anything_is_downloaded(world: World) -> None:
    with pytest.raises(UserError) as caught:
        check_run(world.plan(TRAIN, model="org/none"))
    assert "explored (sample, steps.2): there is no model org/none on the Hub" in str(caught.value)
    assert not (world.folder / "cache").exists()


def test_a_revision_is_written_behind_the_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ORG/NAME@REVISION"):
        ModelConfig(policy="vllm", model="org/tiny", revision="v1")
    assert ModelConfig(policy="vllm", model="org/tiny@v1").served_name == "tiny"
    with user_error("model-of-wrong-kind", "holds an adapter", "server: {lora: {NAME: "):
        model_folder(str(tiny_adapter()))
