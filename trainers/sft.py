"""Supervised fine-tuning with TRL: ``python -m agentmill.trainers.sft --config FILE [key=value …]``.

Reads a table of ``SftRow`` and writes a model folder, alone or under ``accelerate launch -m agentmill.trainers.sft …``.
``agentmill.schemas.training`` lists the settings. The same command continues from the last checkpoint after a stop, and
does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from agentmill.trainers.command import SftSettings, exit_process, say
from agentmill.trainers.launch import check_command_line, run_trainer

if __name__ == "__main__":
    # Importing torch and TRL takes seconds, in which a user need not wait to read of a misspelt setting.
    check_command_line(SftSettings, "sft")

import numpy as np
import torch
from datasets import Dataset
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from agentmill.schemas.records.rows import SftRow
from agentmill.trainers.adapters import starting_point
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import attention_mask, best_fit, check_rows_stay_apart, cut_windows, join, pad
from agentmill.trainers.data import EncodedRow, TrainingRows, open_rows, read_rows, report_rows
from agentmill.trainers.launch import context_parallel_size, pieces_of_sequence
from agentmill.trainers.prefix_sharing import (
    TokenTree,
    check_prefixes_can_be_shared,
    share_prefixes,
    tree_mask,
    with_structure,
)
from agentmill.trainers.requirements import FLASH
from agentmill.trainers.run_dir import TrainingSetup, set_up_training
from agentmill.trainers.sampled_tokens import encode_row
from agentmill.trainers.tokenization import IGNORED, Encoded, RowError
from agentmill.trainers.train_loop import train_model
from agentmill.trainers.trl_trainer import Examples, Method


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run_trainer(train, SftSettings, "sft", argv)


def train(settings: SftSettings) -> None:
    """Write the model folder ``settings.output``. Raises ``UserError`` before the first step, where it can."""
    table = open_rows(settings.rows, SftRow, "sft")
    settings, start = starting_point(settings)
    setup = set_up_training("sft", settings, table, *start)
    if setup is None:
        return

    encode = partial(sequences, tokenizer=setup.tokenizer, long_rows=settings.long_rows, max_length=setup.max_length)
    if settings.share_prefixes:
        join = partial(share_prefixes, max_length=setup.max_length)
        rows, examples = read_rows(setup, settings, encode, TokenTree, join=join), "trees of sequences"
    else:
        rows, examples = read_rows(setup, settings, encode, Encoded), "sequences"
    report_rows(rows, examples)
    method = sft_method(settings, rows, setup)
    if method.packs:
        say(
            f"packing: {rows.counts.written} {examples} in {len(method.packs)} packs of up to {setup.max_length} tokens"
        )
    train_model(settings, setup, rows, method)


def sequences(row: SftRow, tokenizer: Any, long_rows: str, max_length: int) -> EncodedRow[Encoded]:
    """The row as it is, or cut into windows where it is too long, without sequences that carry no loss.

    Raises ``RowError``.
    """
    whole = encode_row(row, tokenizer)
    # A row may be several sequences; with long_rows: drop it is dropped whole if one of them is too long.
    longest = max(len(each) for _, each in whole if each.loss_tokens)
    cut = long_rows == "window" or longest <= max_length
    parts = [part for _, each in whole for part in cut_windows(each, max_length)] if cut else []
    if not parts:
        reason = ", and no turn fits alone" if cut else ""
        lost = sum(each.loss_tokens for _, each in whole)
        raise RowError("too_long", f"{longest} tokens, more than max_length {max_length}{reason}", lost)
    return EncodedRow(parts, parts, whole)


def with_labels(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Sequences as they are trained on, from what is on disk."""
    found: dict[str, list[Any]] = {"input_ids": [np.array(ids, np.int64) for ids in batch["input_ids"]]}
    masks = [np.array(mask, bool) for mask in batch["mask"]]
    found["labels"] = [np.where(mask, ids, IGNORED) for ids, mask in zip(found["input_ids"], masks, strict=True)]
    found["weights"] = [np.zeros(len(mask), np.float32) for mask in masks]
    for weights, mask, given in zip(found["weights"], masks, batch["weights"], strict=True):
        weights[mask] = given
    return found


def with_labels_and_structure(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Trees as they are trained on, from what is on disk."""
    return {**with_labels(batch), **with_structure(batch)}


def packed(batch: Mapping[str, list[list[int]]], rows: Dataset) -> dict[str, list[Any]]:
    """The packs of ``rows`` with these numbers."""
    packs = []
    for numbers in batch["rows"]:
        found = rows[numbers]
        packs.append(join([{name: values[place] for name, values in found.items()} for place in range(len(numbers))]))
    return {name: [each[name] for each in packs] for name in packs[0]}


class SftCollator:
    """Pads sequences on the right to the longest of the batch, and further to a ``multiple`` of tokens.

    ``flat``: puts them one after the other in one row.
    """

    def __init__(
        self, pad_token_id: int, packed: bool = False, trees: bool = False, flat: bool = False, multiple: int = 1
    ) -> None:
        self.flat, self.multiple = flat, multiple
        self.padding: dict[str, float] = {"input_ids": pad_token_id, "labels": IGNORED, "weights": 0.0}
        if trees:
            self.padding |= dict.fromkeys(("position_ids", "parents", "ends", "copies"), 0)
        elif packed:
            # Positions tell the rows of a pack apart; with 0 each token of the padding counts as a row of its own.
            self.padding["position_ids"] = 0

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (rows, longest): ``input_ids``, ``attention_mask``, ``labels``, ``weights`` …"""
        if self.flat:
            rows = [{name: np.concatenate([row[name] for row in rows]) for name in self.padding}]
        batch = {name: pad([row[name] for row in rows], value) for name, value in self.padding.items()}
        batch["attention_mask"] = attention_mask([row["input_ids"] for row in rows])
        more = -batch["input_ids"].shape[1] % self.multiple
        filling = {**self.padding, "attention_mask": 0}
        return {name: torch.nn.functional.pad(each, (0, more), value=filling[name]) for name, each in batch.items()}


class MaskedSFTTrainer(BaseTrainer, SFTTrainer):
    """TRL's SFT trainer with a weight for each token, and with rows of a pack, or branches of a tree, that do not see
    each other.

    The loss of an optimizer step is the weighted sum over its tokens with loss, divided by their number over all
    batches and processes; with ``loss_type`` ``dft`` each token is also weighted by its probability. The loss curve has
    the share of the tokens with loss that were predicted right (``accuracy``).
    """

    args: SFTConfig
    counted: ClassVar[tuple[str, ...]] = ("right",)
    divides_sequences: ClassVar[bool] = True

    def __init__(
        self, *args: Any, packing: bool, flat: bool = False, tree_length: int | None = None, **kwargs: Any
    ) -> None:
        """``flat``: packs are in batches of one row; ``tree_length``: examples are trees of at most so many tokens."""
        super().__init__(*args, **kwargs)
        self._packing, self._trees = packing, tree_length is not None
        # Under FSDP the other processes may have no weights yet.
        if self.args.process_index == 0:
            if tree_length is not None:
                check_prefixes_can_be_shared(self.model, tree_length)
            elif packing:
                # Kernels that take flat batches compute in bf16 only, in which accelerate runs the model later.
                with torch.autocast(self.args.device.type, torch.bfloat16, enabled=flat and bool(self.args.bf16)):
                    check_rows_stay_apart(self.model, flat)

    def _get_num_items_in_batch(self, batch_samples: list[dict[str, torch.Tensor]], device: torch.device) -> Any:
        """The tokens with loss of a step; one that several sequences share counts for each of them."""
        if self._trees:
            labels = [each["labels"].flatten().repeat_interleave(each["copies"].flatten()) for each in batch_samples]
            # Under this name they are counted as they are, without a shift.
            batch_samples = [{"labels": each, "shift_labels": each} for each in labels]
        return super()._get_num_items_in_batch(batch_samples, device)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of one batch of a step; see the class. TRL's own has no weights."""
        if return_outputs or num_items_in_batch is None:
            raise NotImplementedError("it gives losses alone, as shares of num_items_in_batch")
        attended, labels = inputs["attention_mask"], inputs["labels"]
        # Where a mask is given, transformers does not tell rows apart by their positions.
        seen = {} if self._packing or self._trees else {"attention_mask": attended}
        seen |= {name: inputs[name] for name in ("position_ids", "shift_labels") if name in inputs}
        if self._trees:
            seen |= {"attention_mask": tree_mask(inputs["ends"], self.model), "parents": inputs["parents"]}
        outputs = model(input_ids=inputs["input_ids"], labels=labels, fused_lm_head=True, **seen)
        following, weights = inputs.get("shift_labels"), inputs["weights"]
        if following is None:
            following, weights = labels[:, 1:], weights[:, 1:]
        self.count(attended, following != IGNORED, right=outputs.is_top1.sum().item())
        log_probs = outputs.log_probs * weights
        # Its loss is also low where tokens are impossible, so validation measures the likelihood.
        if self.args.loss_type == "dft" and not self.validating:
            # Without a gradient through the weight: it scales the loss, and is not itself to be learnt.
            log_probs = log_probs * outputs.log_probs.detach().exp()
        # Gradients are averaged over processes, while the number of tokens is summed over them.
        loss: torch.Tensor = -log_probs.sum() / num_items_in_batch * self.accelerator.num_processes
        return loss

    def loss_units(self, batch: dict[str, torch.Tensor]) -> int:
        """Tokens with loss; one that several sequences share counts for each of them."""
        trained = batch["labels"][:, 1:] != IGNORED
        return int(batch["copies"][:, 1:][trained].sum() if self._trees else trained.sum())

    def _prepare_context_parallel_inputs(self, model: Any, inputs: dict[str, torch.Tensor]) -> Any:
        """Also shift the weights, and divide them between the processes as the labels are."""
        if context_parallel_size() == 1:
            return super()._prepare_context_parallel_inputs(model, inputs)
        inputs["weights"] = torch.nn.functional.pad(inputs["weights"][:, 1:], (0, 1))
        context: Any
        context, inputs = super()._prepare_context_parallel_inputs(model, inputs)
        context.keywords["buffers"].append(inputs["weights"])
        context.keywords["buffer_seq_dims"].append(1)
        return context, inputs

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """The accuracy."""
        return {"accuracy": sums["right"] / sums["loss_tokens"]}


def sft_method(settings: SftSettings, rows: TrainingRows, setup: TrainingSetup) -> Method:
    """Supervised fine-tuning on sequences, or on packs of them."""
    packs = best_fit(rows.lengths, setup.max_length, settings.seed) if settings.packing else None
    # Rows to validate on are alone in their packs, so that processes can share few of them.
    alone = [[row] for row in range(len(rows.validation.lengths))] if rows.validation and packs is not None else None
    trees = settings.share_prefixes
    # With these kernels transformers separates rows by their positions in a batch of one row only.
    flat = settings.packing and settings.attention in FLASH
    examples = sequence_examples(rows, packs, trees)
    return Method(
        trainer=MaskedSFTTrainer,
        config=SFTConfig,
        # TRL would tokenise and mask the rows anew.
        options={"dataset_kwargs": {"skip_prepare_dataset": True}, "loss_type": settings.objective},
        examples=examples.dataset,
        lengths=examples.lengths,
        validation=sequence_examples(rows.validation, alone, trees) if rows.validation else None,
        collator=SftCollator(setup.tokenizer.pad_token_id or 0, settings.packing, trees, flat, pieces_of_sequence()),
        measured=("accuracy",),
        packs=packs,
        trainer_arguments={
            "packing": settings.packing,
            "flat": flat,
            "tree_length": setup.max_length if trees else None,
        },
    )


def sequence_examples(rows: TrainingRows, packs: list[list[int]] | None, trees: bool) -> Examples:
    """Sequences or trees, or the ``packs`` of those with these numbers."""
    transform = with_labels_and_structure if trees else with_labels
    examples, lengths = rows.examples.with_transform(transform), rows.lengths
    if packs is None:
        return Examples(examples, lengths)
    whole = Dataset.from_dict({"rows": packs}).with_transform(partial(packed, rows=examples))
    return Examples(whole, [sum(lengths[row] for row in pack) for pack in packs])


if __name__ == "__main__":
    exit_process(main())
