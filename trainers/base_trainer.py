"""What our trainers share over TRL's: a loss curve that counts tokens, FSDP on CPU, and a cheaper output head."""

from __future__ import annotations

import functools
import os
import time
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from transformers import Trainer

from agentmill.trainers.tokenization import IGNORED

COUNTED = ("tokens", "places", "loss_tokens")


class BaseTrainer(Trainer):
    """A mixin before a trainer of TRL.

    Each point of the loss curve also counts, since the point before, ``tokens`` and ``loss_tokens``, the share of
    ``padding`` and the ``seconds``, and has what ``measured`` makes of the sums named in ``counted``.
    """

    counted: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._names = (*COUNTED, *self.counted)
        self._sums = dict.fromkeys(self._names, 0.0)
        self._last_point = time.monotonic()
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

    def count(self, attended: torch.Tensor, mask: torch.Tensor, **sums: float) -> None:
        """Add a batch of sequences to the sums; ``mask`` is true where there is loss."""
        own = {"tokens": int(attended.sum()), "places": attended.numel(), "loss_tokens": int(mask.sum())}
        for name, number in (own | sums).items():
            self._sums[name] += number

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """The values of a point of the loss curve, from the ``sums`` over all processes."""
        raise NotImplementedError

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what is counted to a point of the loss curve."""
        # TRL also logs a summary at the end of a training, which is no point of the curve.
        if "loss" in logs:
            # The sums are of this process alone, and the curve is that of all.
            counted = [self._sums[name] for name in self._names]
            # Single precision counts to 16 million only.
            values = torch.tensor(counted, dtype=torch.float64, device=self.accelerator.device)
            sums = dict(zip(self._names, self.accelerator.reduce(values, "sum").tolist(), strict=True))
            now = time.monotonic()
            logs |= {"loss_tokens": int(sums["loss_tokens"]), "tokens": int(sums["tokens"])}
            logs |= {"padding": 1 - sums["tokens"] / sums["places"], "seconds": now - self._last_point}
            logs |= self.measured(sums)
            self._sums = dict.fromkeys(self._names, 0.0)
            self._last_point = now
        super().log(logs, start_time)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: TRL writes a card into every checkpoint, ours is written once, with the finished model."""


PER_TOKEN = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


def skip_tokens_without_loss(model: Any) -> None:
    """Make ``model``, which has TRL's fused head, compute it only where ``labels`` say that there is loss.

    TRL leaves out the other tokens on GPUs only. On CPU it computes all of them, which is half of the work for a small
    model with a large vocabulary. What comes out is what TRL's head gives: of shape (rows, tokens - 1), 0 without loss.
    ``parents``, of shape (rows, tokens), has the place that predicts each token, where that is not the one before it.
    """
    fused = model.forward
    narrowed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep_tokens_with_loss(_module: Any, _inputs: Any, output: Any) -> None:
        if narrowed:
            output.last_hidden_state = output.last_hidden_state[narrowed[0]]

    @functools.wraps(fused)
    def forward(
        *args: Any, labels: Any = None, fused_lm_head: bool = False, parents: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        if not fused_lm_head:
            return fused(*args, labels=labels, **kwargs)
        following = labels[:, 1:]
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
        for name in PER_TOKEN:
            values = getattr(output, name)
            if values is not None:
                # Back into the shape (rows, tokens - 1), in which TRL's losses sum over rows.
                setattr(output, name, values.new_zeros(kept.shape).masked_scatter(kept, values))
        output.label_mask = kept
        return output

    model.base_model.register_forward_hook(keep_tokens_with_loss)
    model.forward = forward
