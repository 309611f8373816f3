"""The loss on labelled rows: that of the paper over our masks, and TRL's own where nothing has to be masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentmill.schemas.lora import LoraConfig
from agentmill.trainers.adapters import ModelFiles
from agentmill.trainers.command import KtoSettings
from agentmill.trainers.kto import UnpairedCollator
from agentmill.trainers.kto import kto_method as method_of
from agentmill.trainers.monitors import Progress
from agentmill.trainers.preference_data import encode_labelled
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
from tests.trainers.tables import assistant, system, unpaired, user

torch.set_num_threads(1)
ROWS = [unpaired("a", True, 1), unpaired("b", False, 2), unpaired("c", True, 0), unpaired("d", False, 1)]


def made(tmp_path: Path, model: Path, rows: list[Any], tokenizer: dict[str, Any] | None = None, **given: Any) -> Any:
    settings = KtoSettings(rows="r", model="m", output="o", max_steps=1, batch_size=len(rows), **given)
    start = started(tmp_path, model, rows, **(tokenizer or {}))
    loaded_rows, examples = loaded(start, settings, encode_labelled)
    reference = None if settings.lora else ModelFiles(model)
    method = method_of(settings, loaded_rows, reference, UnpairedCollator(0, start.max_length))
    return trainer_of(settings, start, method), examples, start


def distance(trainer: Any, reference: Any, rows: list[Any]) -> torch.Tensor:
    """The estimate of the KL divergence: every prompt with the completion before it."""
    before = [rows[-1], *rows[:-1]]
    ids, masks = (
        [
            torch.tensor([*getattr(row.sequence, name)[: row.prompt], *getattr(other.sequence, name)[other.prompt :]])
            for row, other in zip(rows, before, strict=True)
        ]
        for name in ("input_ids", "mask")
    )
    with torch.no_grad():
        return (logps(trainer.model, ids, masks) - logps(reference, ids, masks)).mean().clamp(min=0)


def expected_loss(trainer: Any, model: Path, rows: list[Any], sides: tuple[float, float] = (1.0, 1.0)) -> torch.Tensor:
    """One loss for each row."""
    reference = plain(model)
    ids, masks = [row.sequence.input_ids for row in rows], [row.sequence.mask for row in rows]
    with torch.no_grad():
        before = logps(reference, ids, masks)
    gained = logps(trainer.model, ids, masks) - before
    good = torch.tensor([row.label for row in rows])
    away = gained - distance(trainer, reference, rows)
    losses = 1 - torch.sigmoid(trainer.beta * torch.where(good, away, -away))
    return losses * torch.where(good, sides[0], sides[1])


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_loss_and_gradient_over_the_mask(lora: LoraConfig | None, tmp_path: Path, model: Path) -> None:
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.5}
    trainer, rows, _ = made(tmp_path, model, ROWS, lora=lora, beta=0.3, **weights)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(4)))
    found = gradients(trainer.model, loss)
    expected = expected_loss(trainer, model, rows, (1.5, 0.5)).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)
    wanted = gradients(trainer.model, expected)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=2e-3, atol=2e-5)


def test_weights_scale_the_loss_of_their_row(tmp_path: Path, model: Path) -> None:
    numbers = [0.25, 1.0, 3.0, 2.0]
    rows = [
        unpaired(each.row_id, each.label, turns, number)
        for each, turns, number in zip(ROWS, (1, 2, 0, 1), numbers, strict=True)
    ]
    trainer, encoded, _ = made(tmp_path, model, rows, beta=0.3)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(4)))
    expected = (expected_loss(trainer, model, encoded) * torch.tensor(numbers)).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)


@pytest.mark.parametrize("loss_type", ["kto", "apo_zero_unpaired"])
def test_without_observations_it_is_that_of_trl(loss_type: str, tmp_path: Path, model: Path) -> None:
    """On completions of one message, with a template that ends with it, TRL puts loss where we do."""
    from datasets import Dataset
    from trl.trainer.kto_trainer import KTOTrainer

    rows = [
        unpaired(name, label, prompt=[system(), user(task)], completion=[assistant(said)])
        for name, label, task, said in (("a", True, "Go.", "open the door"), ("b", False, "Stop here.", "move the box"))
    ]
    trainer, _, start = made(tmp_path, model, rows, {"chat_template": without_observations()}, loss_type=loss_type)
    ours = trainer.compute_loss(trainer.model, batch_of(trainer, range(2)))
    plain_rows = [
        {
            side: [{"role": message.role, "content": message.content} for message in getattr(row, side)]
            for side in ("prompt", "completion")
        }
        | {"tools": row.tools, "label": row.label}
        for row in rows
    ]
    theirs = KTOTrainer(
        model=plain(model), ref_model=plain(model), args=trainer.args, train_dataset=Dataset.from_list(plain_rows),
        processing_class=start.tokenizer,
    )  # fmt: skip
    theirs.model.load_state_dict(trainer.model.state_dict())
    loss = theirs.compute_loss(theirs.model, batch_of(theirs, range(2)))
    assert ours.item() == pytest.approx(loss.item(), abs=1e-5)
    assert abs(ours.item() - 0.5) > 1e-4


def test_a_point_of_the_curve_says_how_far_both_sides_went(tmp_path: Path, model: Path) -> None:
    trainer, rows, _ = made(tmp_path, model, ROWS, beta=0.3)
    trainer.remove_callback(Progress)
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch_of(trainer, range(4)))
    logs: dict[str, float] = {"loss": 1.0}
    trainer.log(logs)
    assert logs["kl"] == pytest.approx(distance(trainer, plain(model), rows).item(), abs=1e-3)
    assert logs["chosen_reward"] == pytest.approx(logs["rewards/chosen"], rel=1e-4)
    assert logs["margin"] == pytest.approx(logs["rewards/margins"], rel=1e-3)
    good = sum(row.sequence.loss_tokens for row in rows if row.label)
    assert logs["chosen_change"] == pytest.approx(logs["rewards/chosen"] / 0.3 * 2 / good, rel=1e-4)


def test_rows_are_crossed_within_their_batch_and_cut() -> None:
    rows = [
        {"ids": [1, 2, 3, 4], "mask": [0, 0, 1, 1], "prompt": 2, "label": True, "weight": 1.0},
        {"ids": [5, 6, 7], "mask": [0, 0, 1], "prompt": 1, "label": False, "weight": 0.5},
    ]
    batch = UnpairedCollator(pad_token_id=9, max_length=4)(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 9]]
    assert batch["completion_mask"].tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert batch["KL_input_ids"].tolist() == [[1, 2, 6, 7], [5, 3, 4, 9]]
    assert batch["KL_completion_mask"].tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]
    assert batch["KL_attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["label"].tolist() == [True, False]
    assert batch["weights"].tolist() == [1.0, 0.5]
