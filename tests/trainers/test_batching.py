"""From sequences to batches: windows of long rows, packs of short ones, their order and padding."""

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
from numpy.typing import NDArray

from agentmill.trainers.batching import best_fit, check_rows_stay_apart, cut_windows, join, row_order
from agentmill.trainers.sft import SftCollator, main
from agentmill.trainers.tokenization import IGNORED, Encoded, encode, turn_ranges
from tests.errors import user_error
from tests.trainers.tables import assistant, row, rows, system, tool_row, turns, user, write_table
from tests.trainers.test_sft_loss import learnt, row_trainer

lengths = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@given(lengths, st.integers(1, 8), st.integers(1, 30), st.integers(0, 3))
def test_rows_come_equally_often_and_none_meets_itself_in_a_group(
    lengths: list[int], group: int, steps: int, seed: int
) -> None:
    order = row_order(lengths, group, group * steps, seed)
    seen = np.bincount(order, minlength=len(lengths))
    assert len(order) == group * steps
    assert seen.max() - seen.min() <= 1
    if len(lengths) >= group:
        groups = [order[start : start + group] for start in range(0, len(order), group)]
        assert all(len(set(rows)) == group for rows in groups)


def test_the_order_is_a_function_of_the_seed() -> None:
    sizes = list(range(100))
    assert row_order(sizes, 4, 100, 1) == row_order(sizes, 4, 100, 1)
    assert row_order(sizes, 4, 100, 1) != row_order(sizes, 4, 100, 2)


def test_rows_of_like_length_share_a_batch() -> None:
    sizes = [10 * (1 + index % 16) for index in range(512)]
    order = row_order(sizes, 8, 512, 0)
    longest = sum(8 * max(sizes[row] for row in order[start : start + 8]) for start in range(0, 512, 8))
    assert longest <= 1.05 * sum(sizes)
    first = [sizes[order[start]] for start in range(0, 512, 8)]
    assert first != sorted(first)


def test_padding_is_on_the_right_and_without_loss() -> None:
    batch = SftCollator(pad_token_id=7)(
        [
            {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "weights": [0.0, 1.0, 0.5]},
            {"input_ids": [4], "labels": [4], "weights": [1.0]},
        ]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 7, 7]]
    assert batch["labels"].tolist() == [[-100, 2, 3], [4, -100, -100]]
    assert batch["weights"].tolist() == [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].dtype == torch.int64


def trained_turns(encoded: Encoded, tokenizer: Any) -> list[str]:
    """Which commands of ``turns`` carry loss."""
    text = tokenizer.decode(encoded.labels[encoded.labels != IGNORED].tolist())
    return [part.split()[3] for part in text.split("<|im_end|>") if part]


def test_a_row_that_fits_stays_as_it_is(tokenizer: Any) -> None:
    encoded = encode(turns(3), tokenizer)
    assert cut_windows(encoded, len(encoded)) == [encoded]


@pytest.mark.parametrize("longer", [-1, 0])
def test_what_carries_no_loss_is_no_sequence(longer: int, tokenizer: Any) -> None:
    encoded = encode(turns(3), tokenizer)
    silent = replace(encoded, labels=np.full_like(encoded.labels, IGNORED))
    assert cut_windows(silent, len(silent) + longer) == []


@pytest.mark.parametrize("room", [2.5, 3, 4, 7.5])
def test_each_turn_is_trained_once_and_every_window_fits(room: float, tokenizer: Any) -> None:
    encoded = encode(turns(12), tokenizer)
    (_, opening), (start, end), *_ = turn_ranges(encoded)
    max_length = opening + round(room * (end - start + 1))
    cut = cut_windows(encoded, max_length)
    assert len(cut) > 1
    assert all(len(window) <= max_length for window in cut)
    assert [turn for window in cut for turn in trained_turns(window, tokenizer)] == [str(turn) for turn in range(12)]
    assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
    for window in cut:
        assert window.input_ids[:opening].tolist() == encoded.input_ids[:opening].tolist()
    assert [window.row_id for window in cut] == [f"r1#{index}" for index in range(len(cut))]


def test_a_later_window_shows_what_its_first_turn_answers(tokenizer: Any) -> None:
    encoded = encode(turns(12), tokenizer)
    cut = cut_windows(encoded, len(encoded) // 3)
    assert len(cut) > 3
    for window in cut[1:]:
        first = int(trained_turns(window, tokenizer)[0])
        start = int(np.flatnonzero(window.labels != IGNORED)[0])
        assert tokenizer.decode(window.input_ids[:start]).endswith(
            f"You are at {first - 1}.<|im_end|>\n<|im_start|>assistant\n"
        )


def test_a_call_is_never_cut(tokenizer: Any) -> None:
    encoded = encode(tool_row(), tokenizer)
    (_, opening), (_, call), (_, end) = turn_ranges(encoded)
    assert opening < call
    for max_length in range(call - opening, end):
        cut = cut_windows(encoded, max_length)
        assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
        assert all(len(window) <= max_length for window in cut)


def observed(words: list[int], said: int = 4) -> Any:
    """Turns of ``said`` words after observations of so many ``words``."""
    messages = [system(), user("Move.")]
    for turn, number in enumerate(words):
        messages += [assistant(f"move the box {turn} " + "push " * said), user(f"at {turn} " + "wall " * number)]
    return row([*messages, assistant("move the box end")])


def test_a_turn_that_does_not_fit_with_the_last_turn_follows_the_last_observation(tokenizer: Any) -> None:
    encoded = encode(observed([40, 40, 40]), tokenizer)
    (_, opening), *parts = turn_ranges(encoded)
    max_length = opening + max(end - start for start, end in parts) + 8
    cut = cut_windows(encoded, max_length)
    assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
    assert all(len(window) <= max_length for window in cut)
    assert not any(window.cut for window in cut)
    for turn, window in enumerate(cut[1:]):
        first = int(np.flatnonzero(window.mask)[0])
        assert window.input_ids[:opening].tolist() == encoded.input_ids[:opening].tolist()
        assert f"at {turn} wall" in tokenizer.decode(window.input_ids[opening:first])


@pytest.mark.parametrize("beyond", [0, 1, 10, 30])
def test_every_turn_that_fits_alone_is_trained_with_what_fits_before_it(beyond: int, tokenizer: Any) -> None:
    encoded = encode(observed([60, 60, 60], said=20), tokenizer)
    places = [np.flatnonzero(encoded.mask & (encoded.messages == index)) for index in (2, 4, 6, 8)]
    starts = [int(np.searchsorted(encoded.messages, index)) for index in (2, 4, 6, 8)]
    max_length = beyond + max(int(here[-1]) + 1 - start for here, start in zip(places, starts, strict=True))
    cut = cut_windows(encoded, max_length)
    assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
    assert max(map(len, cut)) == max_length
    assert cut[1].cut
    first = int(np.flatnonzero(cut[1].mask)[0])
    context = tokenizer.decode(cut[1].input_ids[:first])
    assert context.endswith("<|im_start|>assistant\n")


def test_a_turn_that_is_too_long_alone_is_in_no_window(tokenizer: Any) -> None:
    encoded = encode(row([system(), user("Go."), assistant("push " * 99), user("Well."), assistant("stop")]), tokenizer)
    (window,) = cut_windows(encoded, 60)
    assert tokenizer.decode(window.labels[window.mask].tolist()) == "stop<|im_end|>"
    assert cut_windows(encode(row([user("Go."), assistant("push " * 99)]), tokenizer), 60) == []


torch.set_num_threads(1)
CAPACITY = 300


@pytest.fixture(scope="module")
def encoded(tokenizer: Any) -> list[Encoded]:
    weighted = row([user("Go."), assistant("open the door", weight=0.25), user("Yes."), assistant("go", weight=3.0)])
    return [encode(each, tokenizer) for each in (turns(3), weighted, tool_row(), turns(1), turns(2, words=9))]


Arrays = dict[str, NDArray[Any]]


def arrays(each: Encoded) -> Arrays:
    """A sequence as it comes from the disk."""
    return {name: getattr(each, name) for name in ("input_ids", "labels", "weights")}


def pack_rows(sequences: Sequence[Encoded], capacity: int) -> list[Arrays]:
    """The packs of some sequences."""
    packs = best_fit(list(map(len, sequences)), capacity, seed=0)
    return [join([arrays(sequences[number]) for number in numbers]) for numbers in packs]


def batch_of(rows: Sequence[Arrays], packing: bool) -> dict[str, torch.Tensor]:
    return SftCollator(0, packing)(rows)


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
    (pack,) = pack_rows(encoded[:2], 1000)
    first, second = sorted(encoded[:2], key=len, reverse=True)
    assert pack["position_ids"].tolist() == [*range(len(first)), *range(len(second))]
    assert pack["input_ids"].tolist() == [*first.input_ids, *second.input_ids]
    (pack,) = pack_rows([replace(each, labels=each.input_ids) for each in (first, second)], 1000)
    assert np.flatnonzero(pack["labels"] == IGNORED).tolist() == [0, len(first)]


def test_loss_and_gradients_are_those_of_the_rows(
    encoded: list[Encoded], model: Path, tmp_path: Path, tokenizer: Any
) -> None:
    packs = pack_rows(encoded, CAPACITY)
    assert 1 < len(packs) < len(encoded)
    apart = learnt(row_trainer(model, tmp_path, tokenizer), batch_of([arrays(each) for each in encoded], packing=False))
    together = learnt(row_trainer(model, tmp_path, tokenizer, packing=True), batch_of(packs, packing=True))
    assert together[0] == pytest.approx(apart[0], rel=1e-5)
    for name, gradient in together[1].items():
        torch.testing.assert_close(gradient, apart[1][name], rtol=1e-4, atol=1e-6)


def test_each_token_is_as_likely_as_in_its_row_alone(encoded: list[Encoded], model: Path) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    batch = batch_of(pack_rows(encoded, CAPACITY), packing=True)
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
    check_rows_stay_apart(trainer.model)

    class Recurrent(torch.nn.Module):
        """Sees all that came before, whatever the positions are."""

        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return trainer.model(input_ids=input_ids, use_cache=False)

    with user_error("packing-impossible"):
        check_rows_stay_apart(Recurrent())


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
