"""Rows in a pack learn what they learn alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentmill.trainers.batches import Collator
from agentmill.trainers.packing import Pack, best_fit, check_apart, packed
from agentmill.trainers.sft import main
from agentmill.trainers.tokens import IGNORED, Encoded, encode
from tests.errors import user_error
from tests.trainers.tables import assistant, row, rows, tool_row, turns, user, write_table
from tests.trainers.test_loss import learnt, row_trainer

torch.set_num_threads(1)
CAPACITY = 300


@pytest.fixture(scope="module")
def encoded(tokenizer: Any) -> list[Encoded]:
    weighted = row([user("Go."), assistant("open the door", weight=0.25), user("Yes."), assistant("go", weight=3.0)])
    return [encode(each, tokenizer) for each in (turns(3), weighted, tool_row(), turns(1), turns(2, words=9))]


def batch_of(sequences: Sequence[Encoded | Pack], packing: bool) -> dict[str, torch.Tensor]:
    names = ("input_ids", "labels", "weights", *(["position_ids"] if packing else []))
    return Collator(0, packing)([{name: getattr(each, name).tolist() for name in names} for each in sequences])


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(100, 300), st.integers(0, 3))
def test_every_row_is_in_one_pack_that_holds_it(lengths: list[int], capacity: int, seed: int) -> None:
    packs = best_fit(lengths, capacity, seed)
    assert sorted(row for pack in packs for row in pack) == list(range(len(lengths)))
    sizes = sorted(sum(lengths[row] for row in pack) for pack in packs)
    assert sizes[-1] <= capacity
    assert len(sizes) < 2 or sizes[0] + sizes[1] > capacity
    assert packs == best_fit(lengths, capacity, seed)


def test_the_longest_go_first_and_each_where_it_fits_best() -> None:
    assert best_fit([3, 5, 2, 6, 4], 10, seed=0) == [[3, 4], [1, 0, 2]]
    assert best_fit([5] * 20, 10, seed=0) != best_fit([5] * 20, 10, seed=1)


def test_a_pack_begins_anew_with_every_row(encoded: list[Encoded]) -> None:
    (pack,) = packed(encoded[:2], 1000, seed=0)
    first, second = sorted(encoded[:2], key=len, reverse=True)
    assert pack.position_ids.tolist() == [*range(len(first)), *range(len(second))]
    assert pack.input_ids.tolist() == [*first.input_ids, *second.input_ids]
    (pack,) = packed([replace(each, labels=each.input_ids) for each in (first, second)], 1000, seed=0)
    assert np.flatnonzero(pack.labels == IGNORED).tolist() == [0, len(first)]


def test_loss_and_gradients_are_those_of_the_rows(
    encoded: list[Encoded], model: Path, tmp_path: Path, tokenizer: Any
) -> None:
    packs = packed(encoded, CAPACITY, seed=0)
    assert 1 < len(packs) < len(encoded)
    apart = learnt(row_trainer(model, tmp_path, tokenizer), batch_of(encoded, packing=False))
    together = learnt(row_trainer(model, tmp_path, tokenizer, packing=True), batch_of(packs, packing=True))
    assert together[0] == pytest.approx(apart[0], rel=1e-5)
    for name, gradient in together[1].items():
        torch.testing.assert_close(gradient, apart[1][name], rtol=1e-4, atol=1e-6)


def test_each_token_is_as_likely_as_in_its_row_alone(encoded: list[Encoded], model: Path) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    batch = batch_of(packed(encoded, CAPACITY, seed=0), packing=True)
    said = plain(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    found = {}
    for ids, positions, logits in zip(batch["input_ids"], batch["position_ids"], said, strict=True):
        starts = torch.nonzero(positions == 0).flatten().tolist()
        for start, end in pairwise([*starts, len(ids)]):
            found[tuple(ids[start:end].tolist())] = logits[start:end]
    for each in encoded:
        ids = each.input_ids.tolist()
        alone = plain(input_ids=torch.tensor([ids])).logits[0]
        torch.testing.assert_close(found[tuple(ids)], alone, rtol=1e-4, atol=1e-4)


def test_no_row_sees_its_neighbour(model: Path, tmp_path: Path, tokenizer: Any) -> None:
    trainer = row_trainer(model, tmp_path, tokenizer)
    check_apart(trainer.model)

    class Recurrent(torch.nn.Module):
        """Sees all that came before, whatever the positions are."""

        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return trainer.model(input_ids=input_ids, use_cache=False)

    with user_error("packing-impossible"):
        check_apart(Recurrent())


def test_a_training_with_packs(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--config", str(config), "max_steps=null", "epochs=2", "max_length=256", "save_steps=null"]
    assert main([*options, "batch_size=12"]) == 0
    assert main([*options, "batch_size=2", "packing=true", f"output={tmp_path / 'packed'}"]) == 0
    alone, together = (json.loads((tmp_path / name / "training.json").read_bytes()) for name in ("tuned", "packed"))
    assert f"packing: 24 sequences in {together['packs']} packs of up to 256 tokens" in capsys.readouterr().err
    assert (alone["packs"], together["counts"]["written"]) == (None, len(rows()))
    assert together["steps"] == -(-2 * together["packs"] // 2)
    assert together["tokens"] == alone["tokens"]
    assert together["loss_tokens"] == alone["loss_tokens"]
    assert together["padding"] < alone["padding"] / 2
    assert together["last_loss"] < together["first_loss"] - 1
    assert f"2 packs of sequences, {together['packs']} in all" in (tmp_path / "packed" / "README.md").read_text()


def test_windows_and_dropped_rows_count_as_without_packing(config: Path, tmp_path: Path) -> None:
    silent = row([user("Go."), assistant("no", train=False)], "silent")
    table = write_table(tmp_path / "few", [turns(1, "short"), turns(9, "long"), silent, turns(2, "short2")])
    options = ["--config", str(config), f"rows={table}", "max_steps=null", "batch_size=1", "max_length=220"]
    options.append("max_dropped=0.25")
    assert main(options) == 0
    assert main([*options, "packing=true", f"output={tmp_path / 'packed'}"]) == 0
    alone, together = (json.loads((tmp_path / name / "training.json").read_bytes()) for name in ("tuned", "packed"))
    assert together["counts"] == alone["counts"] == {"read": 4, "used": 3, "dropped": 1, "written": alone["steps"]}
    assert together["reasons"] == alone["reasons"] == {"no_loss": 1}
    assert alone["steps"] > 3
    assert together["steps"] == together["packs"] < alone["steps"]
    for fact in ("roles", "lost_tokens", "tokens", "loss_tokens"):
        assert together[fact] == alone[fact]
