"""The training step of a recipe, with the real trainer on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from pipelines.stages.train_dpo import TrainDpo
from pipelines.stages.train_kto import TrainKto
from pipelines.stages.train_reward import TrainReward
from pipelines.stages.train_sft import TrainSft
from pipelines.stages.training import Lora, Training
from schemas.config import Config, read_yaml
from tests.model import tiny_model
from tests.pipelines.cli.world import CHECK, DEMONSTRATE, EXPORT, MODELS, agentmill, write_recipe, write_world
from trainers.settings import DpoSettings, KtoSettings, LoraSettings, RewardSettings, SftSettings, TrainSettings

TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "max_steps": 1, "batch_size": 1, "as": "tuned"}
OURS = {"rows", "model", "reference"}
GIVEN_BY_THE_STEP = {"rows", "model", "reference", "output", "recipe"}
NOT_IN_A_RECIPE = {"resume", "log_steps"}


@pytest.mark.parametrize(
    ("step", "settings"),
    [(TrainSft, SftSettings), (TrainDpo, DpoSettings), (TrainKto, KtoSettings), (TrainReward, RewardSettings)],
)
def test_a_step_knows_what_the_trainer_knows(step: type[Training], settings: type[TrainSettings]) -> None:
    assert set(step.model_fields) - OURS == set(settings.model_fields) - GIVEN_BY_THE_STEP - NOT_IN_A_RECIPE
    assert set(Lora.model_fields) == set(LoraSettings.model_fields)
    given: tuple[tuple[type[Config], type[Config]], ...] = ((step, settings), (Lora, LoraSettings))
    for ours, theirs in given:
        for name in set(ours.model_fields) & set(theirs.model_fields) - OURS - {"lora"}:
            optional = {str(each) for each in get_args(ours.model_fields[name].annotation)}
            expected = theirs.model_fields[name].annotation
            assert str(expected) in optional or {str(each) for each in get_args(expected)} <= optional, name


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other core to others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_train_again_and_differently(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path)
    models = {**MODELS, "actor": {"policy": "vllm", "model": str(tiny_model())}}
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT, TRAIN, models=models)
    assert agentmill("run", recipe) == 0
    tuned = tmp_path / "run/tuned"
    assert json.loads((tuned / "config.json").read_bytes())["model_type"] == "llama"
    assert "mask self-test passed" in capfd.readouterr().err
    stages = json.loads((tmp_path / "run/summary.json").read_bytes())["stages"]
    assert [stages["tuned"][key] for key in ("read", "used", "dropped", "written")] == [2, 2, 0, 2]

    weights = (tuned / "model.safetensors").stat()
    assert agentmill("run", recipe) == 0
    assert "nothing to do: all 4 steps of small were done before" in capfd.readouterr().err
    assert (tuned / "model.safetensors").stat() == weights

    assert agentmill("run", recipe, "steps.tuned.learning_rate=1e-3") == 2
    assert "learning_rate: (absent) -> 0.001" in capfd.readouterr().err
    assert (tuned / "model.safetensors").stat() == weights

    assert agentmill("run", recipe, "steps.tuned.lora={rank: 4}", "steps.tuned.seed=5", "--replace") == 0
    assert (tuned / "model.safetensors").stat() != weights
    assert not (tuned / "adapter_config.json").exists()
    config = read_yaml(tmp_path / "run/trainings/tuned/config.yaml")
    assert (config["seed"], config["recipe"], config["lora"]) == (5, "small", {"rank": 4, "merge": True})
