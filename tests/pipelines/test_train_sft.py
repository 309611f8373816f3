"""The training step of a recipe, with the real trainer on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from pipelines.stages.train_dpo import TrainDpo
from pipelines.stages.train_kto import TrainKto
from pipelines.stages.train_reward import TrainReward
from pipelines.stages.train_sft import TrainSft
from pipelines.stages.training import NULLABLE, Training
from schemas.config import read_yaml, validate
from schemas.errors import UserError
from schemas.training import template_identity
from tests.model import tiny_model
from tests.pipelines.cli.world import CHECK, DEMONSTRATE, EXPORT, MODELS, agentmill, write_recipe, write_world
from trainers.settings import DpoSettings, KtoSettings, RewardSettings, SftSettings, TrainSettings

TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "max_steps": 1, "batch_size": 1, "as": "tuned"}
OURS = {"rows", "model", "reference"}
GIVEN_BY_THE_STEP = {"rows", "model", "reference", "output", "recipe"}
NOT_IN_A_RECIPE = {"resume", "log_steps"}


SETTINGS = [(TrainSft, SftSettings), (TrainDpo, DpoSettings), (TrainKto, KtoSettings), (TrainReward, RewardSettings)]


def mirrored(step: type[Training], settings: type[TrainSettings]) -> list[str]:
    """The settings that a recipe and the trainer both know."""
    return sorted(set(step.model_fields) & set(settings.model_fields) - GIVEN_BY_THE_STEP)


@pytest.mark.parametrize(("step", "settings"), SETTINGS)
def test_a_step_knows_what_the_trainer_knows(step: type[Training], settings: type[TrainSettings]) -> None:
    assert set(step.model_fields) - OURS == set(settings.model_fields) - GIVEN_BY_THE_STEP - NOT_IN_A_RECIPE
    for name in mirrored(step, settings):
        optional = {str(each) for each in get_args(step.model_fields[name].annotation)}
        expected = settings.model_fields[name].annotation
        assert str(expected) in optional or {str(each) for each in get_args(expected)} <= optional, name


@pytest.mark.parametrize(("step", "settings"), SETTINGS)
def test_a_step_has_no_default_of_its_own(step: type[Training], settings: type[TrainSettings]) -> None:
    """Nothing is handed on that is not given, so what holds then is the trainer's default, the same as alone."""
    minimal = step.model_validate({"rows": "rows", "model": "actor"})
    assert minimal._given() == {}
    for name in mirrored(step, settings):
        assert step.model_fields[name].default is None, name
        theirs = settings.model_fields[name]
        null_differs = theirs.default is not None and type(None) in get_args(theirs.annotation)
        assert null_differs == (name in NULLABLE), name


@pytest.mark.parametrize(("step", "settings"), SETTINGS)
def test_a_step_takes_the_values_that_the_trainer_takes(step: type[Training], settings: type[TrainSettings]) -> None:
    alone = {"rows": "rows", "model": "m", "output": "o"}
    words = ["auto", "linear", "window", "dft", "kto", ["sft"]]
    values = [None, -1, 0, 0.5, 1, 2, 16, 2.5, True, *words, [], {}, {"rank": 0}]
    for name in mirrored(step, settings):
        for value in values:
            if value is None and name not in NULLABLE:
                continue
            taken = [
                accepts(step, {"rows": "rows", "model": "actor", name: value}),
                accepts(settings, {**alone, name: value}),
            ]
            if not isinstance(value, list):  # losses and weights also have to fit each other, which the trainer checks
                assert taken[0] == taken[1] or name == "batch_size", (name, value)


@pytest.mark.parametrize(
    ("index", "given"),
    [
        (0, {"save_dtype": "bf16", "lora": {"merge": False}}),
        (1, {"loss_weights": [1.0, 2.0]}),
        (1, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0]}),
        (1, {"loss_type": ["exo_pair"]}),
        (2, {"batch_size": 1}),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_a_run(index: int, given: dict[str, Any]) -> None:
    step, settings = SETTINGS[index]
    assert not accepts(settings, {"rows": "rows", "model": "m", "output": "o", **given})
    assert not accepts(step, {"rows": "rows", "model": "actor", **given})


def test_a_chat_template_counts_by_what_is_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "chat_template": str(file)})
    found = []
    for text in ("{{ messages }}", "{{ messages }}", "{{ tools }}"):
        file.write_text(text, encoding="utf-8")
        found.append(template_identity(step.chat_template))
    assert found[0] == found[1] != found[2]
    assert (template_identity(None), template_identity("training")) == (None, "training")


def accepts(config: type[Training] | type[TrainSettings], given: dict[str, Any]) -> bool:
    try:
        validate(config, given, "given")  # type: ignore[type-var]
    except UserError:
        return False
    return True


def test_lora_is_merged_by_default_in_a_recipe_and_alone() -> None:
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "lora": {"rank": 8}})
    alone = SftSettings.model_validate({"rows": "rows", "model": "m", "output": "o", "lora": {"rank": 8}})
    assert step.lora == alone.lora
    assert alone.lora is not None
    assert alone.lora.merge
    assert not step.keeps_adapter
    assert step._given() == {"lora": {"rank": 8}}


def test_no_checkpoints_are_asked_for_by_null() -> None:
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "save_steps": None, "epochs": None})
    assert step._given() == {"save_steps": None}


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
    assert (config["seed"], config["recipe"], config["lora"]) == (5, "small", {"rank": 4})
