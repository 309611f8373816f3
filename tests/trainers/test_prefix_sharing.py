"""Sequences that share a prefix, trained as one: the loss and its gradient are those of the sequences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.records.rows import SftRow
from agentmill.trainers.batching import join
from agentmill.trainers.data import by_trajectory
from agentmill.trainers.prefix_sharing import (
    TokenTree,
    check_prefixes_can_be_shared,
    common_prefix,
    share_prefixes,
    tree_structure,
)
from agentmill.trainers.sft import MaskedSFTTrainer, SftCollator, main, with_labels, with_labels_and_structure
from agentmill.trainers.tokenization import IGNORED, Encoded
from tests.errors import user_error
from tests.trainers.tables import assistant, row, system, user, write_table
from tests.trainers.test_sft_loss import learnt, row_trainer, trainer_of

torch.set_num_threads(1)


def sequence(ids: Sequence[int], trained: Sequence[int] = (), weight: float = 1.0) -> Encoded:
    """Tokens, with loss at the places ``trained``."""
    tokens = np.array(ids, np.int32)
    mask = np.isin(np.arange(len(ids)), list(trained))
    weights = np.where(mask, np.float32(weight), np.float32(0))
    return Encoded("s", tokens, np.where(mask, tokens, np.int32(IGNORED)), weights, np.zeros_like(tokens), ("user",))


def paths(tree: TokenTree) -> list[list[int]]:
    """The tokens from the root to each token that nothing follows."""
    parents = tree_structure(len(tree), tree.branches.ravel())["parents"].tolist()
    leaves = set(range(len(tree))) - {parent for place, parent in enumerate(parents) if place}
    found = []
    for leaf in sorted(leaves):
        path = [leaf]
        while path[0]:
            path.insert(0, parents[path[0]])
        found.append(tree.input_ids[path].tolist())
    return found


TRIE = [
    sequence([1, 2, 3, 4], [3], 0.5),
    sequence([1, 2, 5, 6, 7], [2, 4], 2.0),
    sequence([1, 2, 5, 8], [2, 3]),
    sequence([1, 2], [1]),
]


def test_each_token_of_a_prefix_is_once_in_the_tree() -> None:
    (tree,) = share_prefixes(TRIE, 100)
    assert tree.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tree.branches.tolist() == [[4, 1], [7, 4]]
    assert tree.weights.tolist() == [0, 1, 0, 0.5, 3, 0, 2, 1]
    assert tree.copies.tolist() == [0, 1, 0, 1, 2, 0, 1, 1]
    structure = {name: values.tolist() for name, values in tree_structure(8, tree.branches.ravel()).items()}
    assert structure == {
        "position_ids": [0, 1, 2, 3, 2, 3, 4, 3],
        "parents": [0, 0, 1, 2, 1, 4, 5, 4],
        "ends": [8, 8, 4, 4, 8, 7, 7, 8],
    }


def test_a_tree_that_is_too_long_is_cut_and_repeats_what_is_shared() -> None:
    trees = share_prefixes(TRIE, 5)
    assert [paths(tree) for tree in trees] == [[[1, 2, 3, 4]], [[1, 2, 5, 6, 7]], [[1, 2, 5, 8]]]
    assert sum(int(tree.copies.sum()) for tree in trees) == 6
    assert [len(tree) for tree in share_prefixes(TRIE, 6)] == [4, 6]


def test_sequences_that_share_nothing_are_trees_of_their_own() -> None:
    trees = share_prefixes([sequence([5, 6], [1]), sequence([1, 2], [1]), sequence([300, 2], [0])], 100)
    assert [tree.input_ids.tolist() for tree in trees] == [[1, 2], [5, 6], [300, 2]]
    # The first token of a sequence has nothing to be predicted from.
    assert trees[2].copies.tolist() == [0, 0]
    assert share_prefixes([], 10) == []


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8), st.integers(8, 30))
def test_every_sequence_is_a_path_and_each_token_sees_its_path_only(given_ids: list[list[int]], longest: int) -> None:
    sequences = [sequence(ids, range(len(ids))) for ids in given_ids]
    trees = share_prefixes(sequences, longest)
    found = [path for tree in trees for path in paths(tree)]
    assert all(any(path[: len(ids)] == ids for path in found) for ids in given_ids)
    assert max(len(tree) for tree in trees) <= longest
    assert sum(int(tree.copies.sum()) for tree in trees) == sum(len(ids) - 1 for ids in given_ids)
    for tree in trees:
        structure = tree_structure(len(tree), tree.branches.ravel())
        for query in range(len(tree)):
            path = [query]
            while path[0]:
                path.insert(0, int(structure["parents"][path[0]]))
            seen = [key for key in range(query + 1) if query < structure["ends"][key]]
            assert seen == path
            assert structure["position_ids"][query] == len(path) - 1


def test_common_prefix() -> None:
    one, other = np.array([1, 2, 3], np.int32), np.array([1, 2, 4, 5], np.int32)
    assert (common_prefix(one, other), common_prefix(one, one[:2]), common_prefix(one[2:], other)) == (2, 2, 0)


# --- loss and gradients ---


def dialogue(chance: np.random.Generator, steps: int) -> list[Encoded]:
    """Sequences as of a template that drops earlier reasoning: each ends with a step, with its reasoning."""
    trunk, found = chance.integers(1, 120, 6).tolist(), []
    for _ in range(steps):
        reasoning, answer, reply = (chance.integers(1, 120, size).tolist() for size in (4, 3, 5))
        whole = [*trunk, *reasoning, *answer]
        found.append(sequence(whole, range(len(trunk), len(whole)), float(chance.random())))
        trunk += [*answer, *reply]
    return found


@pytest.fixture(scope="module")
def groups() -> list[list[Encoded]]:
    chance = np.random.default_rng(0)
    one, other = dialogue(chance, 5), dialogue(chance, 2)
    # The same step twice, and one that is the beginning of another: their tokens carry loss in both.
    return [[*one, replace(one[2], weights=one[2].weights * 3)], [*other, sequence(other[1].input_ids[:12], [10, 11])]]


def stored(examples: Sequence[Any]) -> dict[str, list[Any]]:
    columns = [each.columns() for each in examples]
    return {name: [each[name] for each in columns] for name in columns[0]}


def each_of(batch: dict[str, list[Any]]) -> list[dict[str, Any]]:
    count = len(batch["labels"])
    return [{name: values[place] for name, values in batch.items()} for place in range(count)]


def tree_trainer(model: Path, output: Path, tokenizer: Any, loss_type: str = "nll") -> Any:
    more = {"data_collator": SftCollator(0, trees=True), "packing": False, "tree_length": 100}
    return trainer_of(MaskedSFTTrainer, model, output, tokenizer, loss_type, **more)


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
@pytest.mark.parametrize("packing", [False, True])
def test_loss_and_gradients_are_those_of_the_sequences(
    loss_type: str, packing: bool, groups: list[list[Encoded]], model: Path, tmp_path: Path, tokenizer: Any
) -> None:
    apart = row_trainer(model, tmp_path, tokenizer, loss_type=loss_type)
    rows = SftCollator(0)(each_of(with_labels(stored([each for group in groups for each in group]))))
    trees = [tree for group in groups for tree in share_prefixes(group, 60)]
    assert len(trees) == 3
    examples = each_of(with_labels_and_structure(stored(trees)))
    batch = SftCollator(0, packing, trees=True)([join(examples)] if packing else examples)
    assert batch["attention_mask"].sum() < 0.6 * rows["attention_mask"].sum()
    together = tree_trainer(model, tmp_path, tokenizer, loss_type)
    items = together._get_num_items_in_batch([batch], torch.device("cpu"))
    assert (
        items == apart._get_num_items_in_batch([rows], torch.device("cpu")) == (rows["labels"][:, 1:] != IGNORED).sum()
    )
    expected_loss, expected = learnt(apart, rows)
    loss = together.compute_loss(together.model, dict(batch), num_items_in_batch=items)
    together.model.zero_grad()
    loss.backward()
    assert loss.item() == pytest.approx(expected_loss, abs=1e-5)
    found = {name: each.grad for name, each in together.model.named_parameters()}
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def small(kind: str, **fields: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **fields}))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "mistral", "gpt2"])
def test_models_that_take_a_mask_of_a_tree(kind: str, attention: str) -> None:
    model = small(kind, attn_implementation=attention)
    check_prefixes_can_be_shared(model, 48)
    assert model.training


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (("mistral", {"sliding_window": 16}), "16 tokens back"),
        (("gemma2", {"sliding_window": 16}), "16 tokens back"),
        (("bloom", {"n_head": 2, "n_layer": 2}), "this model"),
        (("mamba", {"state_size": 4, "expand": 1}), "this model"),
    ],
)
def test_other_models_are_refused(model: tuple[str, dict[str, Any]], why: str) -> None:
    with user_error("prefix-sharing-impossible", why):
        check_prefixes_can_be_shared(small(model[0], **model[1]), 48)


def test_attention_without_such_a_mask_is_refused() -> None:
    model = small("llama")
    model.config._attn_implementation = "flash_attention_2"
    with user_error("prefix-sharing-impossible", "flash_attention_2"):
        check_prefixes_can_be_shared(model, 48)


# --- trainings ---


def step_rows(trajectory: str, steps: int) -> list[SftRow]:
    """A row for each step, with loss on its last message."""
    messages = [system(), user("Move the box to the door.")]
    found = []
    for step in range(steps):
        said = f"move the box {step} push push"
        whole = [*messages, assistant(said)]
        found.append(replace_trajectory(row(whole, f"{trajectory}.{step}"), trajectory))
        messages = [*messages, assistant(said, train=False), user(f"You are at {step}.")]
    return found


def replace_trajectory(given_row: SftRow, trajectory: str) -> SftRow:
    import msgspec

    return msgspec.structs.replace(given_row, trajectory_id=trajectory)


def test_rows_of_a_trajectory_are_found_wherever_they_are() -> None:
    one, other = step_rows("a", 2), step_rows("b", 2)
    groups = by_trajectory([one[0], other[0], one[1], other[1]])
    assert [[each.row_id for each in group] for group in groups] == [["a.0", "a.1"], ["b.0", "b.1"]]


def test_a_training_on_rows_of_steps(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [step_rows(f"t{number}", 3 + number) for number in range(4)]
    mixed = [rows[place] for place in range(6) for rows in steps if place < len(rows)]
    table = write_table(tmp_path / "steps", mixed)
    # One batch of everything, so that both make the same step.
    options = ["--config", str(config), f"rows={table}", "max_steps=2", "save_steps=null", "precision=fp32"]
    assert main([*options, f"batch_size={len(mixed)}"]) == 0
    shared = [*options, "share_prefixes=true"]
    assert main([*shared, "batch_size=4", f"output={tmp_path / 'shared'}"]) == 0
    assert main([*shared, "batch_size=1", "packing=true", "max_length=2048", f"output={tmp_path / 'packed'}"]) == 0
    printed = capsys.readouterr().err
    apart, trees, packed = (
        json.loads((tmp_path / name / "training.json").read_bytes()) for name in ("tuned", "shared", "packed")
    )
    counts = trees["trees"]
    assert counts == {"sequences": 18, "trees": 4} | {name: counts[name] for name in ("sequence_tokens", "tree_tokens")}
    assert (trees["counts"]["used"], trees["counts"]["written"], apart["trees"]) == (18, 4, {})
    assert (apart["tokens"], trees["tokens"]) == (2 * counts["sequence_tokens"], 2 * counts["tree_tokens"])
    assert counts["tree_tokens"] < counts["sequence_tokens"] / 2
    assert f"18 sequences of {counts['sequence_tokens']:,} tokens in trees of {counts['tree_tokens']:,}" in printed
    for each in (trees, packed):
        for point, expected in zip(each["loss_curve"], apart["loss_curve"], strict=True):
            for name in ("loss", "grad_norm", "loss_tokens", "accuracy"):
                assert point[name] == pytest.approx(expected[name], rel=1e-3)
    assert packed["packs"] == 1
    assert "trees of sequences" in (tmp_path / "shared" / "README.md").read_text()
    # A tree is there for each row that it is made of, in both steps.
    seen = pq.read_table(tmp_path / "shared" / "rows_seen.parquet").to_pydict()
    assert sorted(seen["row_id"]) == sorted(row.row_id for row in mixed for _ in range(2))
    # Validation counts a token that sequences share once for each, as they do apart.
    others = write_table(tmp_path / "others", mixed[1:])
    validated = [f"validation_rows={others}", "validation={every: 2}"]
    assert main([*options, *validated, f"batch_size={len(mixed)}", f"output={tmp_path / 'valid'}"]) == 0
    assert main([*shared, *validated, "batch_size=4", f"output={tmp_path / 'valid-shared'}"]) == 0
    losses = [
        json.loads((tmp_path / name / "training.json").read_bytes())["validation"]["curve"][-1]["loss"]
        for name in ("valid", "valid-shared")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    # Without the setting the training is the one from before there was it.
    assert "share_prefixes" not in apart["identity"]["settings"]
    assert trees["identity"]["settings"]["share_prefixes"] is True
