"""Fields of TRL's configuration that are given by their own names."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.config import read_yaml, validate
from agentmill.schemas.errors import UserError
from agentmill.schemas.trl_fields import NOT_SETTABLE, SET_BY
from agentmill.trainers.command import DpoSettings, KtoSettings, RewardSettings, SftSettings, TrainSettings
from agentmill.trainers.sft import main
from agentmill.trainers.trl_config import CONFIGS, check_trl_fields
from tests.errors import shows, user_error

SETTINGS: dict[str, type[TrainSettings]] = {
    "sft": SftSettings,
    "dpo": DpoSettings,
    "kto": KtoSettings,
    "reward": RewardSettings,
}
PLACES = {"rows": "rows", "model": "m", "output": "o"}


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the trainers of TRL are given as their configuration."""
    from trl import SFTTrainer

    seen: list[Any] = []
    made = SFTTrainer.__init__

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        seen.append(kwargs["args"])
        made(self, *args, **kwargs)

    monkeypatch.setattr(SFTTrainer, "__init__", record)
    return seen


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "training.json").read_bytes())
    return record


def test_a_field_reaches_trl_and_changes_the_result(config: Path, tmp_path: Path, arguments: list[Any]) -> None:
    assert main(["--config", str(config), f"output={tmp_path / 'plain'}"]) == 0
    assert main(["--config", str(config), "trl={adam_beta2: 0.5}", "optimizer=adamw_torch"]) == 0
    plain, given = arguments
    assert (plain.adam_beta2, given.adam_beta2, given.optim) == (0.999, 0.5, "adamw_torch")
    losses = [record_of(folder)["last_loss"] for folder in (tmp_path / "plain", tmp_path / "tuned")]
    assert losses[0] != losses[1]


def test_it_is_recorded_and_another_value_is_another_training(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--config", str(config), "max_steps=1", "save_steps=null"]
    assert main([*short, "trl={adam_beta1: 0.8}"]) == 0
    record = record_of(tmp_path / "tuned")
    assert record["settings"]["trl"] == record["identity"]["settings"]["trl"] == {"adam_beta1": 0.8}
    assert main([*short, "trl={adam_beta1: 0.8}"]) == 0
    assert main([*short, "trl={adam_beta1: 0.7}"]) == 2
    assert shows(capsys.readouterr().err, "made-differently", "settings.trl.adam_beta1: 0.8 -> 0.7")
    assert main(short) == 2
    assert shows(capsys.readouterr().err, "made-differently", "settings.trl:", "(absent)")


def test_a_training_without_fields_is_the_one_from_before_there_were_any(config: Path, tmp_path: Path) -> None:
    assert main(["--config", str(config), "max_steps=1"]) == 0
    assert "trl" not in record_of(tmp_path / "tuned")["identity"]["settings"]


def test_mistakes_end_the_command_before_the_rows_are_read(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(config), "trl={adam_beta_2: 0.9}"]) == 2
    printed = capsys.readouterr().err
    assert shows(printed, "unknown-key", "SFTConfig", "Did you mean 'adam_beta2'?")
    assert "rows: read" not in printed
    assert main(["--config", str(config), "trl={weight_decay: 0.1}"]) == 2
    assert shows(capsys.readouterr().err, "trl-field-taken", "set `weight_decay` beside `trl`")


@pytest.mark.parametrize(
    ("trainer", "given", "code", "named"),
    [
        ("dpo", {"ld_alpha": "much"}, "invalid-value", ["trl.ld_alpha", "float | None", "much"]),
        ("dpo", {"use_weighting": 1}, "invalid-value", ["trl.use_weighting", "bool"]),
        ("sft", {"optim": "adamw_torhc"}, "invalid-value", ["optimizer:", "Did you mean 'adamw_torch'?"]),
        ("sft", {"ld_alpha": 0.5}, "unknown-key", ["SFTConfig"]),
        ("kto", {"use_weighting": True}, "unknown-key", ["KTOConfig"]),
        ("reward", {"f_divergence_type": "js_divergence"}, "unknown-key", ["RewardConfig"]),
    ],
)
def test_a_field_is_checked_against_the_class_of_its_trainer(
    trainer: str, given: dict[str, Any], code: str, named: list[str]
) -> None:
    with user_error(code, *named):
        check_trl_fields(trainer, given)


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"trl": {"discopop_tau": 0.9}}, "loss_type: discopop"),
        ({"trl": {"f_alpha_divergence_coef": 0.3}}, "f_divergence_type: alpha_divergence"),
        ({"trl": {"f_alpha_divergence_coef": 0.3, "f_divergence_type": "js_divergence"}}, "alpha_divergence"),
        ({"trl": {"dataloader_drop_last": True}}, "order of the rows is fixed"),
        ({"trl": {"discopop_tau": 0.9}, "loss_type": ["discopop"]}, None),
        ({"trl": {"f_alpha_divergence_coef": 0.3, "f_divergence_type": "alpha_divergence"}}, None),
    ],
)
def test_a_field_of_another_loss_is_refused(given: dict[str, Any], needed: str | None) -> None:
    if needed is None:
        validate(SETTINGS["dpo"], {**PLACES, **given}, "test")
        return
    with pytest.raises(UserError, match=needed):
        validate(SETTINGS["dpo"], {**PLACES, **given}, "test")


@pytest.mark.parametrize(
    ("trainer", "given"),
    [
        ("sft", {"adam_epsilon": 1, "neftune_noise_alpha": 5, "lr_scheduler_kwargs": {"num_cycles": 2}}),
        ("dpo", {"f_divergence_type": "js_divergence", "ld_alpha": 0.5}),
        ("kto", {"sync_ref_model": True, "tf32": None}),
        ("reward", {"activation_offloading": True, "optim_args": "decay_rate=-0.8"}),
    ],
)
def test_values_of_the_type_are_taken(trainer: str, given: dict[str, Any]) -> None:
    check_trl_fields(trainer, given)
    # Without checkpoints, since none holds a reference that changes.
    validate(SETTINGS[trainer], {**PLACES, "trl": given, "save_steps": None}, "test")


@pytest.mark.parametrize(
    ("trainer", "name", "instead"),
    [
        ("sft", "per_device_train_batch_size", "`batch_size`"),
        ("sft", "loss_type", "`objective`"),
        ("sft", "packing", "`packing`"),
        ("dpo", "loss_type", "`loss_type`"),
        ("dpo", "disable_dropout", "`lora.dropout`"),
        ("kto", "bf16", "`precision`"),
        ("sft", "optim", "`optimizer`"),
        ("sft", "use_liger_kernel", "`liger`"),
        ("reward", "center_rewards_coefficient", "`center_rewards_coefficient`"),
        ("sft", "pad_to_multiple_of", "padded here"),
        ("kto", "eval_strategy", "`validation`"),
        ("kto", "eval_delay", "agentmill evaluate"),
        ("sft", "run_name", "`report_to`"),
        ("sft", "enable_jit_checkpoint", "its last checkpoint"),
        ("dpo", "accelerator_config", "the order of the rows"),
        ("sft", "dataloader_in_order", "the order of the rows"),
        ("kto", "logging_nan_inf_filter", "ends the training"),
    ],
)
def test_a_field_that_is_decided_elsewhere_is_refused_with_what_to_set_instead(
    trainer: str, name: str, instead: str
) -> None:
    with user_error("trl-field-taken", name, instead):
        validate(SETTINGS[trainer], {**PLACES, "trl": {name: 1}}, "test")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"trl": {"gradient_checkpointing_kwargs": {"use_reentrant": False}}}, "gradient_checkpointing"),
        ({"trl": {"ref_model_sync_steps": 8, "sync_ref_model": False}}, "sync_ref_model"),
        ({"trl": {"neftune_noise_alpha": -5.0}}, "0 or more"),
        ({"trl": {"optim_target_modules": ["q_proj"]}}, "lora.target_modules"),
    ],
)
def test_a_field_that_has_no_effect_or_breaks_the_training_is_refused(given: dict[str, Any], named: str) -> None:
    with user_error("rule-broken", next(iter(given["trl"])), named):
        validate(SETTINGS["dpo"], {**PLACES, **given}, "test")
    trl = {**given["trl"], "sync_ref_model": True, "neftune_noise_alpha": 5}
    met = {"gradient_checkpointing": True, "save_steps": None, "optimizer": "galore_adamw"}
    validate(SETTINGS["dpo"], {**PLACES, **met, "trl": trl}, "test")


def test_a_number_of_epochs_next_to_a_number_of_steps_is_refused() -> None:
    with user_error("rule-broken", "epochs: 3 has no effect with max_steps: 60", "max_steps: null"):
        validate(SETTINGS["sft"], {**PLACES, "epochs": 3, "max_steps": 60}, "test")
    assert validate(SETTINGS["sft"], {**PLACES, "epochs": 3, "max_steps": None}, "test").epochs == 3


def test_what_trl_itself_refuses_is_a_mistake_of_the_user(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "trl={lr_scheduler_kwargs: '{'}"]) == 2
    assert shows(capsys.readouterr().err, "trl-refuses", "trl:")
    # Found where the optimizer, its schedule and the batches are made.
    for field in ("adam_beta2: 2.0", "lr_scheduler_kwargs: {foo: 1}", "dataloader_persistent_workers: true"):
        assert main(["--config", str(config), f"trl={{{field}}}"]) == 2
        assert shows(capsys.readouterr().err, "trl-refuses", "trl:")


def test_every_field_that_is_not_for_the_user_is_one_of_trl() -> None:
    known = {field.name for config in CONFIGS.values() for field in fields(config)}
    assert set(SET_BY) | set(NOT_SETTABLE) <= known
    ours = {name for settings in SETTINGS.values() for name in settings.model_fields} | {"lora.dropout"}
    assert set(SET_BY.values()) <= ours


def test_every_argument_that_agentmill_gives_to_trl_is_refused(
    config: Path, arguments: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a user's value would end in Python's complaint of a keyword given twice."""
    from trl import SFTConfig

    given: set[str] = set()
    made = SFTConfig.__init__

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        given.update(kwargs)
        made(self, *args, **kwargs)

    monkeypatch.setattr(SFTConfig, "__init__", record)
    assert main(["--config", str(config), "max_steps=1", "save_steps=null"]) == 0
    assert given
    settings = read_yaml(config)
    for name in given:
        with user_error("trl-field-taken", name):
            validate(SftSettings, {**settings, "trl": {name: 1}}, "test")
