"""The loss on pairs: that of the paper over our masks, and TRL's own where nothing has to be masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

from agentmill.schemas.lora import LoraConfig
from agentmill.trainers.adapters import ModelFiles
from agentmill.trainers.command import DpoSettings
from agentmill.trainers.dpo import dpo_method
from agentmill.trainers.monitors import Progress
from agentmill.trainers.preference_data import encode_pair
from tests.trainers.preference import (
    batch_of,
    gradients,
    loaded,
    logps,
    plain,
    started,
    trainer_of,
    without_observations,
)
from tests.trainers.tables import assistant, pair, system, user

torch.set_num_threads(1)
ROWS = [pair("a", 1), pair("b", 2), pair("c", 0)]


def made(tmp_path: Path, model: Path, rows: list[Any], tokenizer: dict[str, Any] | None = None, **given: Any) -> Any:
    settings = DpoSettings(rows="r", model="m", output="o", max_steps=1, batch_size=len(rows), **given)
    start = started(tmp_path, model, rows, **(tokenizer or {}))
    loaded_rows, pairs = loaded(start, settings, encode_pair)
    reference = None if settings.lora else ModelFiles(model)
    return trainer_of(settings, start, dpo_method(settings, loaded_rows, reference, 0)), pairs, start


def scored(trainer: Any, reference: Any, pairs: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """What chosen and rejected gained on the reference, pair by pair."""
    sides = [each.chosen for each in pairs] + [each.rejected for each in pairs]
    ids, masks = [each.input_ids for each in sides], [each.mask for each in sides]
    with torch.no_grad():
        before = logps(reference, ids, masks)
    return (logps(trainer.model, ids, masks) - before).chunk(2)  # type: ignore[return-value]


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_sigmoid_over_the_mask(lora: LoraConfig | None, tmp_path: Path, model: Path) -> None:
    trainer, pairs, _ = made(tmp_path, model, ROWS, lora=lora, beta=0.3)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    found = gradients(trainer.model, loss)
    gained, lost = scored(trainer, plain(model), pairs)
    expected = -logsigmoid(0.3 * (gained - lost)).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)
    assert abs(loss.item() - 0.6931) > 1e-3
    wanted = gradients(trainer.model, expected)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=2e-3, atol=2e-5)


def test_weights_scale_the_loss_of_their_pair(tmp_path: Path, model: Path) -> None:
    weighted = [pair("a", 1, weight=0.25), pair("b", 2), pair("c", 0, weight=3.0)]
    trainer, pairs, _ = made(tmp_path, model, weighted)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    found = gradients(trainer.model, loss)
    gained, lost = scored(trainer, plain(model), pairs)
    expected = -(logsigmoid(0.1 * (gained - lost)) * torch.tensor([0.25, 1.0, 3.0])).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)
    wanted = gradients(trainer.model, expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=2e-3, atol=2e-5)


def test_losses_are_added_and_the_likelihood_is_that_of_tokens_with_loss(tmp_path: Path, model: Path) -> None:
    trainer, pairs, _ = made(tmp_path, model, ROWS, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5])
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    gained, lost = scored(trainer, plain(model), pairs)
    chosen = logps(trainer.model, [each.chosen.input_ids for each in pairs], [each.chosen.mask for each in pairs])
    likelihood = -chosen.sum() / sum(each.chosen.loss_tokens for each in pairs)
    expected = -logsigmoid(0.1 * (gained - lost)).mean() + 0.5 * likelihood
    assert loss.item() == pytest.approx(expected.item(), abs=5e-5)


@pytest.mark.parametrize(
    ("loss_type", "trl"),
    [
        *((loss_type, {}) for loss_type in ("ipo", "hinge", "sigmoid_norm", "apo_zero")),
        ("sigmoid", {"ld_alpha": 0.5}),
        ("sigmoid", {"use_weighting": True}),
        ("sigmoid", {"f_divergence_type": "js_divergence"}),
    ],
)
def test_without_observations_it_is_that_of_trl(
    loss_type: str, trl: dict[str, Any], tmp_path: Path, model: Path
) -> None:
    """On completions of one message, with a template that ends with it, TRL puts loss where we do."""
    from datasets import Dataset
    from trl.trainer.dpo_trainer import DPOTrainer

    rows = [
        pair(name, prompt=[system(), user(task)], chosen=[assistant(good)], rejected=[assistant(bad)])
        for name, task, good, bad in (("a", "Go.", "open the door", "push"), ("b", "Stop here.", "ok", "move the box"))
    ]
    trainer, _, start = made(
        tmp_path, model, rows, {"chat_template": without_observations()}, loss_type=[loss_type], trl=trl
    )
    ours = trainer.compute_loss(trainer.model, batch_of(trainer, range(2)))
    plain_rows = [
        {
            side: [{"role": message.role, "content": message.content} for message in getattr(row, side)]
            for side in ("prompt", "chosen", "rejected")
        }
        | {"tools": row.tools}
        for row in rows
    ]
    theirs = DPOTrainer(
        model=plain(model), ref_model=plain(model), args=trainer.args, train_dataset=Dataset.from_list(plain_rows),
        processing_class=start.tokenizer,
    )  # fmt: skip
    theirs.model.load_state_dict(trainer.model.state_dict())
    loss = theirs.compute_loss(theirs.model, batch_of(theirs, range(2)))
    assert ours.item() == pytest.approx(loss.item(), abs=1e-5)


def test_a_point_of_the_curve_says_how_far_both_sides_went(tmp_path: Path, model: Path) -> None:
    trainer, pairs, _ = made(tmp_path, model, ROWS, beta=0.3)
    trainer.remove_callback(Progress)
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    logs: dict[str, float] = {"loss": 1.0}
    trainer.log(logs)
    gained, lost = scored(trainer, plain(model), pairs)
    tokens = sum(each.chosen.loss_tokens for each in pairs)
    assert logs["chosen_change"] == pytest.approx(gained.sum().item() / tokens, rel=1e-3)
    assert logs["margin"] == pytest.approx(0.3 * (gained - lost).mean().item(), rel=1e-3, abs=1e-4)
    assert logs["accuracy"] == pytest.approx((gained > lost).float().mean().item())
    assert logs["chosen_reward"] == pytest.approx(logs["rewards/chosen"], rel=1e-4)
    assert logs["rejected_logp"] == pytest.approx(logs["logps/rejected"], rel=1e-4)
    assert logs["loss_tokens"] == tokens + sum(each.rejected.loss_tokens for each in pairs)


def test_weights_of_rows_to_validate_on_do_not_change_the_training(tmp_path: Path, model: Path) -> None:
    trainer, _, _ = made(tmp_path, model, ROWS, loss_type=["sft"])
    batch = batch_of(trainer, range(3))
    loss = trainer.compute_loss(trainer.model, batch).item()
    batch["weights"] = torch.tensor([2.0, 2.0, 2.0])
    trainer._weighted = (True, True)
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(2 * loss, rel=1e-5)
    trainer._weighted = (False, True)
    assert trainer.compute_loss(trainer.model, batch).item() == loss
    trainer.validating = True
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(2 * loss, rel=1e-5)


def test_the_likelihood_of_weighted_pairs_is_one_over_tokens(tmp_path: Path, model: Path) -> None:
    weighted = [pair("a", 1, weight=0.25), pair("b", 2), pair("c", 0, weight=3.0)]
    trainer, pairs, _ = made(tmp_path, model, weighted, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.5])
    tokens = [each.chosen.loss_tokens for each in pairs]
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    gained, lost = scored(trainer, plain(model), pairs)
    chosen = logps(trainer.model, [each.chosen.input_ids for each in pairs], [each.chosen.mask for each in pairs])
    weights = torch.tensor([0.25, 1.0, 3.0])
    expected = -(logsigmoid(0.1 * (gained - lost)) * weights).mean() - 0.5 * (weights * chosen).sum() / sum(tokens)
    assert loss.item() == pytest.approx(expected.item(), abs=5e-5)
    assert trainer.loss_weights == [1.0, 0.5]
