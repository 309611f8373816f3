"""What our trainers share over TRL's: a loss curve that counts tokens, FSDP on CPU, and a cheaper output head."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import Subset
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from agentmill.trainers.launch import context_parallel_size
from agentmill.trainers.tokenization import IGNORED
from agentmill.trainers.validation import validation_batches

VALIDATION = "eval_"
"""How transformers begins the names of what it measures on ``eval_dataset``."""

COUNTED = ("tokens", "places", "loss_tokens")


class BaseTrainer(Trainer):
    """A mixin before a trainer of TRL.

    Each point of the loss curve also counts, since the point before, ``tokens`` and ``loss_tokens``, the share of
    ``padding`` and the ``seconds``, and has what ``measured`` makes of the sums named in ``counted``.

    ``weighted``: whether rows that are trained on, and rows to validate on, have weights other than 1.

    ``eval_dataset`` has the examples to validate on, of ``validation_lengths`` tokens. Their loss is the one that is
    trained, over all of them at once, and comes with what ``measured`` makes of their sums.
    """

    counted: ClassVar[tuple[str, ...]] = ()
    divides_sequences: ClassVar[bool] = False
    """Whether it can train where each process has a part of every sequence (context parallelism)."""

    order: list[int]
    """The examples of the whole training, one after the other."""

    batch_lengths: NDArray[np.int64]
    """The tokens of the longest row of each batch of the training, over all processes."""

    def __init__(
        self,
        *args: Any,
        validation_lengths: Sequence[int] = (),
        weighted: tuple[bool, bool] = (False, False),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._names = (*COUNTED, *self.counted)
        self._sums = dict.fromkeys(self._names, 0.0)
        self._last_point = time.monotonic()
        self._validation_lengths = validation_lengths
        self.validating = False
        self._weighted = weighted
        # Only after TRL's constructor, which gives both models the fused head that is narrowed here.
        for each in (self.model, getattr(self, "ref_model", None)):
            if each is not None:
                model = self.accelerator.unwrap_model(each)
                skip_tokens_without_loss(model.get_base_model() if hasattr(model, "peft_config") else model)

    def create_accelerator_and_postprocess(self) -> None:
        """Also turn on FSDP between CPU processes."""
        super().create_accelerator_and_postprocess()
        # accelerate ignores its own setting there, though all else works.
        wanted = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        if wanted and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            for state in (PartialState(), self.accelerator.state):
                state._shared_state["distributed_type"] = DistributedType.FSDP
            self.accelerator.state._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
            self.is_fsdp_enabled = True

    @property
    def weighted(self) -> bool:
        """Whether rows of the kind that is computed now have weights; the same in every process."""
        return self._weighted[self.validating]

    def count(self, attended: torch.Tensor, mask: torch.Tensor, **sums: float) -> None:
        """Add a batch of sequences to the sums; ``mask`` is true where there is loss."""
        own = {"tokens": int(attended.sum()), "places": attended.numel(), "loss_tokens": int(mask.sum())}
        for name, number in (own | sums).items():
            self._sums[name] += number

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """The values of a point of the loss curve, from the ``sums`` over all processes."""
        raise NotImplementedError

    def end_after(self, steps: int) -> None:
        """Make no more than so many steps, after which the rows of the training end, too."""
        self.args.max_steps = steps
        rows = steps * self.args.gradient_accumulation_steps * self.args.per_device_train_batch_size
        self._last_row = rows * self.args.world_size // context_parallel_size()

    _last_row: int | None = None

    def get_train_dataloader(self) -> Any:
        """The rows of the training in their order."""
        whole: Any = self.train_dataset
        # Where rows are left, transformers makes one more step of a training that goes on after its last.
        self.train_dataset = whole if self._last_row is None else Subset(whole, range(self._last_row))
        try:
            return super().get_train_dataloader()
        finally:
            self.train_dataset = whole

    def batch_at(self, number: int) -> dict[str, torch.Tensor]:
        """This process's share of a batch of the training, counted from 0, on its device."""
        size = self.args.per_device_train_batch_size
        first = (number * self.args.world_size + self.args.process_index) * size
        dataset: Any = self.train_dataset
        batch: dict[str, torch.Tensor] = self._prepare_inputs(
            self.data_collator(dataset.__getitems__(list(range(first, first + size))))
        )
        return batch

    def with_references(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``batch`` with what other models than the trained one say of it, where its loss needs that."""
        return batch

    def pending_batches(self) -> list[int]:
        """The batches of which ``prepare_rows`` will ask other models."""
        return []

    def prepare_rows(self) -> None:
        """What takes place once, after the model is on its device and before the first step."""

    def start_clock(self) -> None:
        """Let the seconds of the first point of the loss curve begin here."""
        self._last_point = time.monotonic()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Forget what is counted within: batches that are run on trial are no part of the loss curve."""
        kept = {name: copy.deepcopy(getattr(self, name, None)) for name in ("_sums", "_metrics", "_total_train_tokens")}
        try:
            yield
        finally:
            for name, value in kept.items():
                if hasattr(self, name):
                    setattr(self, name, value)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what is counted to a point of the loss curve."""
        # TRL's own measures are means over batches, which may differ in size.
        if f"{VALIDATION}loss" in logs and hasattr(self, "_metrics"):
            self._metrics["eval"].clear()
        # TRL also logs a summary at the end of a training, which is no point of the curve.
        if "loss" in logs:
            sums = self._over_processes(self._sums)
            now = time.monotonic()
            logs |= {"loss_tokens": int(sums["loss_tokens"]), "tokens": int(sums["tokens"])}
            logs |= {"padding": 1 - sums["tokens"] / sums["places"], "seconds": now - self._last_point}
            measured = self.measured(sums)
            logs |= measured
            # TRL's means over batches, or over rows where these have weights, would take the place of ours.
            for name in measured:
                getattr(self, "_metrics", {}).get("train", {}).pop(name, None)
            self._sums = dict.fromkeys(self._names, 0.0)
            self._last_point = now
        super().log(logs, start_time)

    def _over_processes(self, sums: dict[str, float]) -> dict[str, float]:
        """The sums of this process, added up over all."""
        # Single precision counts to 16 million only.
        values = torch.tensor(list(sums.values()), dtype=torch.float64, device=self.accelerator.device)
        return dict(zip(sums, self.accelerator.reduce(values, "sum").tolist(), strict=True))

    def loss_units(self, batch: dict[str, torch.Tensor]) -> int:
        """What the loss of a batch is a mean over: its tokens with loss, or its rows."""
        return len(batch["weights"])

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The batches to validate on; those of transformers would repeat rows where processes have not equally many."""
        del eval_dataset
        examples, args = cast(Dataset, self.eval_dataset), self.args
        batches = validation_batches(
            self._validation_lengths, args.per_device_train_batch_size, args.process_index, args.world_size
        )
        return (self.data_collator(examples.__getitems__(batch)) for batch in batches)

    def validation_batch_lengths(self) -> NDArray[np.int64]:
        """The tokens of the longest row of each batch to validate on, of this process."""
        args, lengths = self.args, self._validation_lengths
        size = args.per_device_train_batch_size
        batches = validation_batches(lengths, size, args.process_index, args.world_size) if lengths else []
        return np.array([max(lengths[row] for row in batch) for batch in batches], np.int64)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Measure the loss of ``get_eval_dataloader``; transformers' own is a mean over batches of whatever size."""
        del description, prediction_loss_only, ignore_keys
        began, of_training = time.monotonic(), self._sums
        self._sums = dict.fromkeys(self._names, 0.0)
        model = self._wrap_model(cast(torch.nn.Module, self.model), training=False)
        model.eval()
        self.validating = True
        total = {"loss": 0.0, "units": 0.0}
        for batch in dataloader:
            inputs = self._prepare_inputs(batch)
            units = self.loss_units(inputs)
            with torch.no_grad(), self.compute_loss_context_manager():
                # In training the loss is divided by the tokens of a step, and scaled up for the mean of gradients.
                items = torch.tensor(max(units, 1) * self.accelerator.num_processes)
                loss = cast(torch.Tensor, self.compute_loss(model, inputs, num_items_in_batch=items))
            total = {"loss": total["loss"] + loss.item() * units, "units": total["units"] + units}
        self.validating = False
        total = self._over_processes(total)
        sums, self._sums = self._over_processes(self._sums), of_training
        took = time.monotonic() - began
        # The seconds of the loss curve are those of training.
        self._last_point += took
        found = {"loss": total["loss"] / total["units"], **self.measured(sums), "seconds": took}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        # The predictions were not kept.
        number = len(self._validation_lengths)
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=number)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: TRL writes a card into every checkpoint, ours is written once, with the finished model."""


PER_TOKEN = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


def skip_tokens_without_loss(model: Any) -> None:
    """Make ``model``, which has TRL's fused head, compute it only where ``labels`` say that there is loss.

    TRL leaves out the other tokens on GPUs only. On CPU it computes all of them, which is half of the work for a small
    model with a large vocabulary. What comes out is what TRL's head gives: of shape (rows, tokens - 1), 0 without loss;
    of shape (rows, tokens) for ``shift_labels``, in which each token's label is in its own place. ``parents``, of shape
    (rows, tokens), has the place that predicts each token, where that is not the one before it.
    """
    fused = model.forward
    narrowed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep_tokens_with_loss(_module: Any, _inputs: Any, output: Any) -> None:
        if narrowed:
            output.last_hidden_state = output.last_hidden_state[narrowed[0]]

    @functools.wraps(fused)
    def forward(
        *args: Any,
        labels: Any = None,
        shift_labels: Any = None,
        parents: torch.Tensor | None = None,
        fused_lm_head: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not fused_lm_head:
            return fused(*args, labels=labels, **kwargs)
        following = labels[:, 1:] if shift_labels is None else shift_labels
        kept = following != IGNORED
        rows, places = kept.nonzero(as_tuple=True)
        if parents is not None:
            places = parents[rows, places + 1]
        # The fused head calls the backbone itself, so the places reach the backbone's hook through this list.
        narrowed.append((rows, places))
        try:
            output = fused(*args, shift_labels=following[kept], fused_lm_head=True, **kwargs)
        finally:
            # Also after an error: otherwise the hook would narrow the next run of the model, which may be one without
            # this head.
            narrowed.clear()
        return in_shape_of_labels(output, kept)

    model.base_model.register_forward_hook(keep_tokens_with_loss)
    model.forward = forward


def in_shape_of_labels(output: Any, kept: torch.Tensor) -> Any:
    """The values of the tokens with loss in the shape of the labels, in which TRL's losses sum over rows; else 0."""
    for name in PER_TOKEN:
        values = getattr(output, name)
        if values is not None:
            setattr(output, name, values.new_zeros(kept.shape).masked_scatter(kept, values))
    output.label_mask = kept
    return output
