"""The training step of a recipe, with the real trainer on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.operators.train import Report, TrainDpo, Training, TrainKto, TrainReward, TrainSft
from agentmill.schemas.config import read_yaml, validate
from agentmill.schemas.errors import UserError
from agentmill.schemas.training import template_identity
from agentmill.trainers.command import DpoSettings, KtoSettings, RewardSettings, SftSettings, TrainSettings
from tests.errors import shows, user_error
from tests.model import tiny_model
from tests.pipelines.cli.tables import CHECK, DEMONSTRATE, EXPORT, MODELS, agentmill, write_environments, write_recipe

pytestmark = pytest.mark.slow

TRAIN = {"operator": "train_sft", "rows": "rows", "model": "actor", "max_steps": 1, "batch_size": 1, "as": "tuned"}
BY_NAME = {"rows", "validation_rows", "model", "reference"}
"""A recipe names them, a trainer gets folders."""
OF_A_TRAINER = {"output", "recipe", "resume", "log_steps", "base", "reference_base"}

SETTINGS = [(TrainSft, SftSettings), (TrainDpo, DpoSettings), (TrainKto, KtoSettings), (TrainReward, RewardSettings)]


@pytest.mark.parametrize(("step", "settings"), SETTINGS)
def test_a_step_and_its_trainer_have_the_same_settings_with_the_same_defaults(
    step: type[Training], settings: type[TrainSettings]
) -> None:
    in_recipe = {name: field for name, field in step.model_fields.items() if name not in BY_NAME}
    alone = {name: field for name, field in settings.model_fields.items() if name not in BY_NAME | OF_A_TRAINER}
    assert {name: repr(field) for name, field in in_recipe.items()} == {
        name: repr(field) for name, field in alone.items()
    }
    assert step.model_validate({"rows": "rows", "model": "actor"})._given() == {}


@pytest.mark.parametrize(
    ("settings", "learning_rate", "batch_size"),
    [(SftSettings, 5e-5, 8), (DpoSettings, 1e-6, 4), (KtoSettings, 1e-6, 8), (RewardSettings, 1e-5, 4)],
)
def test_each_way_of_training_has_defaults_of_its_own(
    settings: type[TrainSettings], learning_rate: float, batch_size: int
) -> None:
    found = settings.model_validate({"rows": "rows", "model": "m", "output": "o"})
    assert (found.learning_rate, found.batch_size) == (learning_rate, batch_size)


@pytest.mark.parametrize(
    ("index", "given"),
    [
        (0, {"save_dtype": "bf16", "lora": {"merge": False}}),
        (1, {"loss_weights": [1.0, 2.0]}),
        (1, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0]}),
        (1, {"loss_type": ["exo_pair"]}),
        (2, {"batch_size": 1}),
        (0, {"trl": {"weight_decay": 0.1}}),
        (3, {"trl": {"eval_steps": 5}}),
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


def test_fields_of_trl_are_part_of_what_a_step_is_compared_by() -> None:
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "trl": {"adam_beta2": 0.95}})
    assert step._given() == {"trl": {"adam_beta2": 0.95}}


@pytest.mark.parametrize(
    ("launch", "compared"),
    [
        ({"processes": 2, "config": "fsdp_cpu"}, {"launch": {"processes": 2}}),
        ({"config": "fsdp_cpu"}, {}),
        ({"processes": "auto"}, {}),
    ],
)
def test_a_step_is_compared_by_the_number_of_its_processes(
    launch: dict[str, Any], compared: dict[str, Any], tmp_path: Path
) -> None:
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "launch": launch, "seed": 3})
    model = SimpleNamespace(config=SimpleNamespace(display_name="m", with_adapter=str), revision="r")
    context: Any = SimpleNamespace(seed=1, models={"model": model})
    assert step.provenance_config(context) == {"seed": 3, "model": {"name": "m", "revision": "r"}, **compared}
    # The trainer, however, gets all of it.
    assert step._given()["launch"] == launch


def test_a_step_is_not_compared_by_what_changes_no_result() -> None:
    """Else a training that was refused, or stopped, could not be mended in the way that its message names."""
    given = {"max_dropped": 0.1, "save_steps": None, "report_to": ["tensorboard"], "estimate": False}
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "max_steps": 3, **given})
    model = SimpleNamespace(config=SimpleNamespace(display_name="m", with_adapter=str), revision="r")
    context: Any = SimpleNamespace(seed=1, models={"model": model})
    assert step.provenance_config(context) == {"seed": 1, "max_steps": 3, "model": {"name": "m", "revision": "r"}}
    assert step._given() == {"max_steps": 3, **given}


def test_rows_to_validate_on_are_of_the_record_of_the_rows() -> None:
    given = {"rows": "rows", "model": "actor", "validation_rows": "others", "validation": {"keep": "best"}}
    step = TrainReward.model_validate(given)
    assert step.tables() == {"rows": ["rows"], "validation_rows": ["others"]}
    assert step._given() == {"validation": {"keep": "best"}}
    assert step.writes({"rows": ["ScorerRow"], "validation_rows": ["ScorerRow"]}) == "RewardModel"
    with user_error("wrong-record-type", "validation_rows holds PreferenceRow", "expected ScorerRow"):
        step.writes({"rows": ["ScorerRow"], "validation_rows": ["PreferenceRow"]})
    assert TrainSft.model_validate({"rows": "rows", "model": "actor"}).tables() == {"rows": ["rows"]}


def test_the_summary_of_a_run_has_the_validation_loss() -> None:
    counts = {"read": 5, "used": 4, "dropped": 1, "written": 4}
    validation = {"counts": counts, "shared_tasks": 2, "best_step": 3, "best_loss": 0.5, "last_loss": None}
    record = {"counts": counts, "reasons": {}, "seconds": 1.0, "validation": {**validation, "kept_step": 3}}
    report = msgspec.convert(record, Report)
    assert report.notes == [
        "validation loss nan on 4 rows that were not trained on; lowest 0.5000 at step 3, the model is that of step 3",
        "warning: 2 tasks or trajectories of the validation rows have rows that were trained on",
    ]
    assert msgspec.structs.replace(report, validation=None).notes == []


def test_no_checkpoints_are_asked_for_by_null() -> None:
    step = TrainSft.model_validate({"rows": "rows", "model": "actor", "save_steps": None, "max_steps": None})
    assert step._given() == {"save_steps": None}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other core to others."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_unknown_fields_of_trl_are_reported_before_the_first_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_environments(tmp_path)
    models = {**MODELS, "actor": {"policy": "vllm", "model": str(tiny_model())}}
    training = {**TRAIN, "trl": {"adam_beta_2": 0.95}}
    recipe = write_recipe(tmp_path, DEMONSTRATE, CHECK, EXPORT, training, models=models)
    assert agentmill("run", recipe) == 2
    assert shows(capfd.readouterr().err, "unknown-key", "SFTConfig", "Did you mean 'adam_beta2'?")
    assert not (tmp_path / "run/demonstrations").exists()


def test_train_again_and_differently(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_environments(tmp_path)
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

    plan = tmp_path / "run/trainings/tuned/plan.json"
    whole = plan.read_bytes()
    plan.write_bytes(whole[:20])
    assert agentmill("run", recipe) == 2
    assert shows(capfd.readouterr().err, "damaged-file", plan, "delete it")
    plan.write_bytes(whole)

    assert agentmill("run", recipe, "steps.tuned.learning_rate=1e-3") == 2
    assert "learning_rate: (absent) -> 0.001" in capfd.readouterr().err
    assert (tuned / "model.safetensors").stat() == weights

    assert agentmill("run", recipe, "steps.tuned.lora={rank: 4}", "steps.tuned.seed=5", "--replace") == 0
    assert (tuned / "model.safetensors").stat() != weights
    assert not (tuned / "adapter_config.json").exists()
    config = read_yaml(tmp_path / "run/trainings/tuned/config.yaml")
    assert (config["seed"], config["recipe"], config["lora"]) == (5, "small", {"rank": 4})
