"""The reference scores each row once, and the losses are those of a reference that runs in every step."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from agentmill.schemas.lora import LoraConfig
from agentmill.schemas.training import DpoConfig, PairLoss
from agentmill.trainers import reference_scores, trl_trainer
from agentmill.trainers.command import DpoSettings, KtoSettings
from agentmill.trainers.dpo import dpo_method
from agentmill.trainers.dpo import main as dpo_main
from agentmill.trainers.kto import UnpairedCollator, kto_method
from agentmill.trainers.kto import main as kto_main
from agentmill.trainers.preference_data import encode_labelled, encode_pair
from agentmill.trainers.reference_kl import scores_once
from agentmill.trainers.reference_scores import ReferenceScores, open_scores
from tests.errors import user_error
from tests.trainers.preference import batch_of, loaded, started, trainer_of
from tests.trainers.tables import pair, unpaired
from tests.trainers.test_estimate import curve

torch.set_num_threads(1)
ORDER = [0, 1, 2, 3, 2, 0, 1, 4]
"""Eight places of five rows, two in a batch: the third batch brings no new row."""


def scores(folder: Path, of_places: Sequence[str] = (), **identity: Any) -> ReferenceScores:
    return ReferenceScores(folder / "reference", identity, ORDER, 2, ("own",), of_places)


def test_a_row_is_scored_where_it_comes_first(tmp_path: Path) -> None:
    made = scores(tmp_path)
    assert made.batches == [0, 1, 3]
    assert scores(tmp_path, ("crossed",)).batches == [0, 1, 2, 3]
    made.begin()
    assert (made.done(), made.finished) == (0, False)
    assert made.at(0) == {}
    values = {0: [-1.0, -2.0], 1: [-3.0, -4.0], 3: [-9.0, -5.0]}
    for done, batch in enumerate(made.batches, 1):
        made.write(done, batch, {"own": np.array(values[batch], np.float32)})
    assert made.finished
    made.open()
    found = [made.at(place)["own"] for place in range(8)]
    assert found == [-1.0, -2.0, -3.0, -4.0, -3.0, -1.0, -2.0, -5.0], "row 1 keeps the value of its first batch"


def test_values_of_a_place_are_those_of_its_batch(tmp_path: Path) -> None:
    made = scores(tmp_path, ("crossed",))
    made.begin()
    assert made.names(2) == ("crossed",)
    for batch in made.batches:
        values = {name: np.array([batch, batch + 0.5], np.float32) for name in made.names(batch)}
        made.write(batch + 1, batch, values)
    made.open()
    assert [made.at(place)["crossed"] for place in range(8)] == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert made.at(4)["own"] == 1.0


def test_it_goes_on_after_what_is_noted_and_starts_over_for_another_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_scores, "SAVE_S", 0)
    made = scores(tmp_path, reference_revision="one")
    made.begin()
    made.write(1, 0, {"own": np.array([-1, -2], np.float32)})
    again = scores(tmp_path, reference_revision="one")
    again.begin()
    assert again.done() == 1
    other = scores(tmp_path, reference_revision="two")
    assert other.done() == 0
    other.begin()
    assert scores(tmp_path, reference_revision="one").done() == 0
    (tmp_path / "reference" / "reference.json").write_text("{")
    assert other.done() == 0


def test_when_rows_are_scored_once() -> None:
    given = {"rows": "r", "model": "m", "output": "o", "batch_size": 4}
    settings = DpoSettings.model_validate(given)
    assert scores_once(settings, adapter_off=False, rows=100)
    assert not scores_once(settings, adapter_off=True, rows=100)
    assert scores_once(DpoSettings.model_validate({**given, "epochs": 2}), True, 100)
    assert scores_once(DpoSettings.model_validate({**given, "max_steps": 26}), True, 100)
    changing = {**given, "trl": {"sync_ref_model": True}}
    assert not scores_once(DpoSettings.model_validate({**changing, "save_steps": None}), False, 100)
    with pytest.raises(ValueError, match="no checkpoint holds the reference"):
        DpoSettings.model_validate(changing)
    assert scores_once(DpoSettings.model_validate({**given, "precompute_reference": True}), True, 100)
    assert not scores_once(DpoSettings.model_validate({**given, "precompute_reference": False}), False, 100)
    with pytest.raises(ValueError, match="if the reference changes during it"):
        DpoConfig.model_validate({"precompute_reference": True, "trl": {"sync_ref_model": True}})
    # Rows to validate on are scored as they come.
    validated = {"validation": {"share": 0.1}}
    assert not scores_once(DpoSettings.model_validate({**given, **validated}), False, 100)
    with pytest.raises(ValueError, match="needed for the rows to validate on"):
        DpoConfig.model_validate({"precompute_reference": True, **validated})
    with pytest.raises(ValueError, match="set `precompute_reference` beside `trl`"):
        DpoConfig.model_validate({"trl": {"precompute_ref_log_probs": True}})


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
@pytest.mark.parametrize("trl", [{}, {"ld_alpha": 0.5}, {"use_weighting": True}])
def test_every_loss_on_pairs_is_that_of_each_step(
    lora: LoraConfig | None, trl: dict[str, Any], tmp_path: Path, model: Path
) -> None:
    """The rows are scored in batches of other rows, so with other padding."""
    rows = [pair("a", 1, 2.0), pair("b", 2), pair("c", 0)]
    given = {"rows": "r", "model": "m", "output": "o", "max_steps": 1, "batch_size": 3, "label_smoothing": 0.1}
    settings = DpoSettings(**given, loss_type=["robust"], lora=lora, trl=trl)  # type: ignore[arg-type]
    start = started(tmp_path, model, rows)
    method = dpo_method(settings, loaded(start, settings, encode_pair)[0], None if lora else model, 0)
    trainer = trainer_of(settings, start, method)
    batch = batch_of(trainer, range(3))
    alone = [trainer.reference_values(batch_of(trainer, [number]), trainer.value_names()) for number in range(3)]
    scored = {name: torch.cat([each[name] for each in alone]) for name in trainer.value_names()}
    for loss_type in get_args(PairLoss):
        trainer.loss_types = [loss_type]
        losses = [trainer.compute_loss(trainer.model, {**batch, **known}).item() for known in ({}, scored)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4, abs=1e-6), loss_type


def test_the_reference_does_not_vary_by_dropout(tmp_path: Path, model: Path) -> None:
    random = shutil.copytree(model, tmp_path / "random")
    config = json.loads((random / "config.json").read_text())
    (random / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    given = {"rows": "r", "model": "m", "output": "o", "max_steps": 1, "batch_size": 2}
    settings = DpoSettings(**given, lora=LoraConfig(rank=4, dropout=0.1))  # type: ignore[arg-type]
    start = started(tmp_path, random, [pair("a", 1), pair("b", 2)])
    method = dpo_method(settings, loaded(start, settings, encode_pair)[0], None, 0)
    trainer = trainer_of(settings, start, method)
    trainer.model.train()
    batch = batch_of(trainer, range(2))
    once, again = (trainer.with_references(batch) for _ in range(2))
    for name in trainer.value_names():
        assert torch.equal(once[name], again[name])
    assert trainer.model.training


@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
def test_both_losses_on_rows_are_those_of_each_step(loss_type: Any, tmp_path: Path, model: Path) -> None:
    rows = [unpaired("a", True, 1), unpaired("b", False, 2), unpaired("c", True, 0), unpaired("d", False, 1)]
    settings = KtoSettings(rows="r", model="m", output="o", max_steps=1, batch_size=4, loss_type=loss_type)
    start = started(tmp_path, model, rows)
    loaded_rows = loaded(start, settings, encode_labelled)[0]
    trainer = trainer_of(settings, start, kto_method(settings, loaded_rows, model, UnpairedCollator(0, 512)))
    batch = batch_of(trainer, range(4))
    scored = trainer.reference_values(batch, trainer.value_names())
    assert set(scored) == ({"ref_logps", "ref_KL_logps"} if loss_type == "kto" else {"ref_logps"})
    alone = [trainer.reference_values(batch_of(trainer, [number]), ["ref_logps"]) for number in range(4)]
    scored["ref_logps"] = torch.cat([each["ref_logps"] for each in alone])
    losses = [trainer.compute_loss(trainer.model, {**batch, **known}).item() for known in ({}, scored)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "lora"), [("dpo", "null"), ("dpo", "{rank: 4, dropout: 0.1}"), ("kto", "null")])
def test_a_training_is_that_of_a_reference_in_every_step(
    trainer: str, lora: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Path = request.getfixturevalue(f"{trainer}_config")
    main: Callable[[list[str]], int] = {"dpo": dpo_main, "kto": kto_main}[trainer]
    models: list[Any] = []
    kept = trl_trainer.load_model
    monkeypatch.setattr(trl_trainer, "load_model", lambda *given, **more: models.append(given) or kept(*given, **more))
    points = []
    for once in ("true", "false"):
        output = tmp_path / once
        # Bf16 rounds by the padding of a batch, which differs after the first pass.
        options = ["precision=fp32", f"precompute_reference={once}", f"lora={lora}", f"output={output}"]
        assert main(["--config", str(config), *options]) == 0
        points.append(curve(output))
    # The reference is the model itself before the first step, or the one under its adapter.
    assert len(models) == (3 if lora == "null" else 2)
    assert points[0][:4] == points[1][:4], "in the first pass the batches are those that were scored"
    for key in ("loss", "margin", "chosen_change", "grad_norm"):
        assert [each[key] for each in points[0]] == pytest.approx([each[key] for each in points[1]], rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_another_model_is_dropped_once_it_has_scored_and_a_stop_costs_nothing(
    dpo_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dpo_main(["--config", str(dpo_config)]) == 0
    other = [f"reference={tmp_path / 'tuned'}", "max_steps=5", f"output={tmp_path / 'next'}"]
    monkeypatch.setattr(reference_scores, "SAVE_S", 0)
    write = ReferenceScores.write

    def stopped(self: ReferenceScores, done: int, batch: int, values: Any) -> None:
        write(self, done, batch, values)
        if done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(ReferenceScores, "write", stopped)
        assert dpo_main(["--config", str(dpo_config), *other]) == 130
    capsys.readouterr()
    seen = []
    prepare = trl_trainer.BaseTrainer.start_clock
    monkeypatch.setattr(trl_trainer.BaseTrainer, "start_clock", lambda self: (seen.append(self), prepare(self))[1])
    assert dpo_main(["--config", str(dpo_config), *other]) == 0
    assert "reference: 1 batches scored" in capsys.readouterr().err
    (trainer,) = seen
    assert trainer.ref_model is None
    with pytest.raises(RuntimeError, match="no longer in memory"):
        trainer.with_references({})
    unbroken = [*other[:2], f"output={tmp_path / 'unbroken'}"]
    assert dpo_main(["--config", str(dpo_config), *unbroken]) == 0
    assert curve(tmp_path / "next") == curve(tmp_path / "unbroken")
    assert curve(tmp_path / "next")[0]["margin"] != 0


def test_a_device_that_fills_before_the_first_score_leaves_what_the_same_command_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("posix_fallocate", "fsync"):
        with monkeypatch.context() as filled, user_error("no-space"):
            filled.setattr(os, name, full)
            scores(tmp_path).begin()
    made = scores(tmp_path)
    made.begin()
    made.write(3, 3, {"own": np.array([-1, -2], np.float32)})
    assert made.finished


def test_scores_count_for_a_reference_that_computes_in_the_same_way(tmp_path: Path, model: Path) -> None:
    start = started(tmp_path, model, [pair("a", 1)])
    start.work.identity["reference_revision"] = "one"
    base: dict[str, Any] = {"rows": "r", "model": "m", "output": "o"}
    others: list[dict[str, Any]] = [
        {},
        {"weights": "bf16"},
        {"attention": "eager"},
        {"liger": True},
        {"lora": {"rank": 4}},
        {"lora": {"rank": 4, "quantize": "4bit"}},
    ]
    found = [
        open_scores(DpoSettings.model_validate({**base, **other}), start, "fp32", (["own"], []), [0], 1).identity
        for other in others
    ]
    assert len({*found}) == len(others)
