"""What rows of single steps cost in training, with their shared prefixes trained once (`share_prefixes`) and without.

    python benchmarks/bench_share_prefixes.py [--turns 10 50] [--model FOLDER] [--trajectories 1]

A trajectory with reasoning in each turn becomes a row for each step, whose prompt shows earlier turns without their
reasoning, as templates like that of Qwen3 do. Both ways train on the same rows. Tokens are those that the model
processes; seconds are those of the forward and backward pass over all of them, in batches that hold about as many
tokens as the longest sequence: a tree, or some of the sequences. The two take turns, and the ratio is the median.
Without a model folder it is a small Llama with random weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe
from trl import SFTConfig

from agentmill.trainers.prefix_sharing import share_prefixes
from agentmill.trainers.sft import MaskedSFTTrainer, SftCollator, with_labels, with_labels_and_structure
from agentmill.trainers.tokenization import IGNORED, Encoded
from tests.model import tiny_model

OPENING, REASONING, ANSWER, OBSERVATION = 60, 24, 8, 24
"""Tokens of the prompt, and of the parts of a turn."""
VOCABULARY = 400


def step_rows(turns: int, chance: np.random.Generator) -> list[Encoded]:
    """The sequences of a trajectory, one for each step."""

    def tokens(number: int) -> list[int]:
        return [int(each) for each in chance.integers(10, VOCABULARY, number)]

    shown, rows = tokens(OPENING), []
    for _ in range(turns):
        answer = tokens(ANSWER)
        ids = np.array([*shown, *tokens(REASONING), *answer], np.int32)
        mask = np.arange(len(ids)) >= len(shown)
        labels, weights = np.where(mask, ids, np.int32(IGNORED)), mask.astype(np.float32)
        rows.append(Encoded("row", ids, labels, weights, np.zeros_like(ids), ("assistant",)))
        shown = [*shown, *answer, *tokens(OBSERVATION)]
    return rows


def examples(made: Sequence[Any], trees: bool) -> list[dict[str, Any]]:
    """Sequences or trees as a data set has them."""
    columns = [each.columns() for each in made]
    batch = {name: [each[name] for each in columns] for name in columns[0]}
    found = (with_labels_and_structure if trees else with_labels)(batch)
    return [{name: values[place] for name, values in found.items()} for place in range(len(made))]


def batches(made: Sequence[dict[str, Any]], room: int, trees: bool) -> list[dict[str, torch.Tensor]]:
    """Batches of at most ``room`` tokens with their padding, or of one example."""
    groups: list[list[dict[str, Any]]] = []
    for each in sorted(made, key=lambda found: -len(found["input_ids"])):
        if not groups or (len(groups[-1]) + 1) * len(groups[-1][0]["input_ids"]) > room:
            groups.append([])
        groups[-1].append(each)
    return [SftCollator(0, trees=trees)(group) for group in groups]


def trainer_of(model: Any, tokenizer: Any, folder: str, tree_length: int | None) -> Any:
    """The trainer that ``train_sft`` takes."""
    arguments = SFTConfig(
        output_dir=folder,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
    from datasets import Dataset

    return MaskedSFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": [[1]], "labels": [[1]]}),
        processing_class=tokenizer,
        packing=False,
        tree_length=tree_length,
    )


def one_pass(trainer: Any, given: Sequence[dict[str, torch.Tensor]]) -> tuple[float, float]:
    """Seconds and loss of a forward and backward pass over all batches."""
    given = [{name: value.to(trainer.model.device) for name, value in each.items()} for each in given]
    items = trainer._get_num_items_in_batch(list(given), trainer.model.device)
    started, loss = time.perf_counter(), 0.0
    for batch in given:
        part = trainer.compute_loss(trainer.model, batch, num_items_in_batch=items)
        part.backward()
        loss += part.item()
    taken = time.perf_counter() - started
    trainer.model.zero_grad()
    return taken, loss


def load(folder: Path | None) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder or tiny_model())
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer
    config = LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=768, num_hidden_layers=4)
    config.num_attention_heads = config.num_key_value_heads = 4
    config.max_position_embeddings = 1 << 15
    torch.manual_seed(0)
    return LlamaForCausalLM(config), tokenizer


def measure(turns: int, given: argparse.Namespace, folder: str) -> None:
    """Print the figures of trajectories of so many turns."""
    chance = np.random.default_rng(0)
    groups = [step_rows(turns, chance) for _ in range(given.trajectories)]
    rows = [row for group in groups for row in group]
    longest = max(map(len, rows))
    trees = [tree for group in groups for tree in share_prefixes(group, 2 * longest)]
    model, tokenizer = load(given.model)
    apart = batches(examples(rows, False), longest, False)
    together = batches(examples(trees, True), longest, True)
    trainers = [trainer_of(model, tokenizer, folder, None), trainer_of(model, tokenizer, folder, 2 * longest)]
    taken: list[tuple[float, float]] = []
    for _ in range(given.rounds):
        (one, loss), (other, shared) = one_pass(trainers[0], apart), one_pass(trainers[1], together)
        assert abs(loss - shared) < 1e-4 * abs(loss), (loss, shared)
        taken.append((one, other))
    before, after = sum(map(len, rows)), sum(map(len, trees))
    mask = max(len(tree) for tree in trees) ** 2 / 2**20
    ratio = statistics.median(one / other for one, other in taken)
    print(
        f"{turns:5}{len(rows):7}{len(trees):7}{before:10,}{after:9,}{before / after:8.1f}"
        f"{min(one for one, _ in taken):9.2f}{min(other for _, other in taken):9.2f}{ratio:8.1f}{mask:10.1f}",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--trajectories", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    print(describe("transformers", "torch"))
    print(
        f"{'turns':>5}{'rows':>7}{'trees':>7}{'tokens':>10}{'shared':>9}{'ratio':>8}{'seconds':>9}{'shared':>9}"
        f"{'ratio':>8}{'mask MiB':>10}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for turns in given.turns:
            measure(turns, given, folder)


if __name__ == "__main__":
    main()
