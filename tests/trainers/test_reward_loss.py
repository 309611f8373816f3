"""The losses of reward models: TRL's own on pairs, with margins and weights, and the squared error on values."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

from agentmill.schemas.training import TrainConfig
from agentmill.trainers.command import RewardSettings
from agentmill.trainers.model_io import load_model
from agentmill.trainers.monitors import Progress
from agentmill.trainers.preference_data import encode_comparison, encode_valued
from agentmill.trainers.reward import pair_method, value_method
from agentmill.trainers.trl_trainer import Method, make_trainer, trl_arguments
from tests.trainers.preference import batch_of, gradients, loaded, move, started
from tests.trainers.scoring import scored
from tests.trainers.tables import TOOLS, assistant, pair, system, user

torch.set_num_threads(1)
ROWS = [
    pair("a", 1, chosen_score=1.0, rejected_score=0.25),
    pair("b", 2, chosen_score=0.5),
    pair("c", 0, chosen_score=0.0, rejected_score=1.0),
]


def made(tmp_path: Path, model: Path, rows: list[Any], **given: Any) -> Any:
    """A trainer in fp32, some way from where it begins, and the examples in its table."""
    settings = RewardSettings(rows="r", model="m", output="o", max_steps=1, batch_size=len(rows), **given)
    start = started(tmp_path, model, rows)
    pairs = hasattr(rows[0], "chosen")
    make = partial(encode_comparison, margin=settings.margin) if pairs else encode_valued
    loaded_rows, examples = loaded(start, settings, make, masked=False)
    method: Method = (pair_method if pairs else value_method)(settings, loaded_rows, start.tokenizer.pad_token_id)
    torch.manual_seed(3)
    base = load_model(start.base, settings, "fp32", method.task)
    trainer = make_trainer(settings, start, method, trl_arguments(settings, start, method, "fp32"), (base, None))
    move(trainer.model)
    return trainer, examples, start


def said(model: Any, sequences: list[Any]) -> torch.Tensor:
    """What the model says of each conversation alone, read from the hidden state of its last token."""
    scores = []
    for each in sequences:
        ids = torch.tensor(each.input_ids.astype(int))[None]
        scores.append(model.score(model.model(input_ids=ids).last_hidden_state[0, -1])[0])
    return torch.stack(scores)


def test_pairs_have_the_loss_of_bradley_and_terry(tmp_path: Path, model: Path) -> None:
    trainer, pairs, _ = made(tmp_path, model, ROWS)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    found = gradients(trainer.model, loss)
    ahead = said(trainer.model, [each.chosen for each in pairs]) - said(
        trainer.model, [each.rejected for each in pairs]
    )
    expected = -logsigmoid(ahead).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert abs(loss.item() - 0.6931) > 1e-3
    wanted = gradients(trainer.model, expected)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=2e-3, atol=2e-5)


def test_weights_scale_the_loss_of_their_pair(tmp_path: Path, model: Path) -> None:
    trainer, pairs, _ = made(tmp_path, model, [pair("a", 1, weight=0.25), pair("b", 2), pair("c", 0, weight=3.0)])
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    ahead = said(trainer.model, [each.chosen for each in pairs]) - said(
        trainer.model, [each.rejected for each in pairs]
    )
    assert loss.item() == pytest.approx(-(logsigmoid(ahead) * torch.tensor([0.25, 1.0, 3.0])).mean().item(), abs=1e-5)


def test_a_margin_is_the_difference_of_the_scores_where_there_is_one(tmp_path: Path, model: Path) -> None:
    assert [each.margin for each in made(tmp_path / "on", model, ROWS, margin=True)[1]] == [0.75, 0.0, 0.0]
    assert [each.margin for each in made(tmp_path / "off", model, ROWS)[1]] == [0.0, 0.0, 0.0]


def test_it_is_the_loss_of_trl_on_the_same_rows(tmp_path: Path, model: Path) -> None:
    from datasets import Dataset
    from trl.trainer.reward_trainer import RewardTrainer

    rows = [
        pair(name, prompt=[system(), user(task)], chosen=[assistant(good)], rejected=[assistant(bad)], **scores)
        for name, task, good, bad, scores in (
            ("a", "Go.", "open the door", "push", {"chosen_score": 2.0, "rejected_score": 0.5}),
            ("b", "Stop here.", "ok", "move the box", {"chosen_score": 1.0, "rejected_score": 0.0}),
        )
    ]
    trainer, _, start = made(tmp_path, model, rows, margin=True, center_rewards_coefficient=0.3)
    batch = batch_of(trainer, range(2))
    ours = trainer.compute_loss(trainer.model, batch)
    plain_rows: list[dict[str, Any]] = [
        {
            side: [{"role": message.role, "content": message.content} for message in getattr(row, side)]
            for side in ("prompt", "chosen", "rejected")
        }
        | {"tools": TOOLS, "margin": margin}
        for row, margin in zip(rows, (1.5, 1.0), strict=True)
    ]
    theirs = RewardTrainer(
        model=load_model(model, TrainConfig(), "fp32", "SEQ_CLS"),
        args=trainer.args,
        train_dataset=Dataset.from_list(plain_rows),
        processing_class=start.tokenizer,
    )
    theirs.model.load_state_dict(trainer.model.state_dict())
    other = batch_of(theirs, range(2))
    assert torch.equal(other["input_ids"], batch["input_ids"])
    loss = theirs.compute_loss(theirs.model, other)
    assert ours.item() == pytest.approx(loss.item(), abs=1e-6)


def test_values_have_the_squared_error(tmp_path: Path, model: Path) -> None:
    trainer, rows, _ = made(
        tmp_path, model, [scored("a", 1.0), scored("b", -0.5, "door", 2), scored("c", 0.25, turns=0)]
    )
    trainer.remove_callback(Progress)
    loss = trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
    found = gradients(trainer.model, loss)
    values = torch.tensor([1.0, -0.5, 0.25])
    scores = said(trainer.model, [each.sequence for each in rows])
    expected = ((scores - values) ** 2).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    for name, gradient in gradients(trainer.model, expected).items():
        torch.testing.assert_close(found[name], gradient, rtol=2e-3, atol=2e-5)

    logs: dict[str, float] = {"loss": 1.0}
    trainer.log(logs)
    assert logs["error"] == pytest.approx(expected.item() ** 0.5, abs=1e-5)
    assert logs["loss_tokens"] == 3
    order = [(one, other) for one in range(3) for other in range(one)]
    right = [(values[one] > values[other]) == (scores[one] > scores[other]) for one, other in order]
    assert logs["accuracy"] == pytest.approx(sum(map(int, right)) / 3)


def test_rows_of_one_value_have_no_order(tmp_path: Path, model: Path) -> None:
    trainer, _, _ = made(tmp_path, model, [scored("a", 1.0), scored("b", 1.0, "door")])
    trainer.remove_callback(Progress)
    trainer.compute_loss(trainer.model, batch_of(trainer, range(2)))
    logs: dict[str, Any] = {"loss": 1.0}
    trainer.log(logs)
    assert logs["accuracy"] is None


def test_the_curve_has_the_extremes_of_a_batch_with_and_without_weights(tmp_path: Path, model: Path) -> None:
    trainer, _, _ = made(tmp_path, model, ROWS)
    # TRL notes what is measured by whether the model learns.
    trainer.model.train()
    found = []
    for weighted in (False, True):
        trainer._weighted = (weighted, weighted)
        trainer._metrics["train"].clear()
        trainer.compute_loss(trainer.model, batch_of(trainer, range(3)))
        found.append({name: trainer._metrics["train"][name] for name in ("min_reward", "max_reward")})
    assert found[0]["min_reward"][0] < found[0]["max_reward"][0]
    assert found[1] == {name: pytest.approx(values) for name, values in found[0].items()}
