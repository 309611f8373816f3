"""What our trainers share over TRL's: a row order of ours, and points of the loss curve that count what was trained."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.utils.data import Sampler
from transformers import Trainer

from agentmill.trainers.batches import FixedOrder
from agentmill.trainers.head import spare_tokens_without_loss

COUNTED = ("tokens", "places", "loss_tokens")


class Loop(Trainer):
    """To be put before a trainer of TRL; ``order`` holds the row numbers of the whole training.

    Each point of the loss curve also counts, since the point before, ``tokens`` and ``loss_tokens``, the share of
    ``padding`` and the ``seconds``, and says what ``measured`` makes of the sums named in ``counted``.
    """

    counted: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, order: list[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._order = order
        self._names = (*COUNTED, *self.counted)
        self._sums = dict.fromkeys(self._names, 0.0)
        self._last_point = time.monotonic()
        for each in (self.model, getattr(self, "ref_model", None)):
            if each is not None:
                model = self.accelerator.unwrap_model(each)
                spare_tokens_without_loss(model.get_base_model() if hasattr(model, "peft_config") else model)

    def create_accelerator_and_postprocess(self) -> None:
        """Also turn on FSDP between CPU processes: accelerate ignores its own setting there, though all else works."""
        super().create_accelerator_and_postprocess()
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
        """What a point of the loss curve says of the ``sums`` over all processes."""
        raise NotImplementedError

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what is counted to a point of the loss curve."""
        if "loss" in logs:
            values = torch.tensor([self._sums[name] for name in self._names], device=self.accelerator.device)
            sums = dict(zip(self._names, self.accelerator.reduce(values, "sum").tolist(), strict=True))
            now = time.monotonic()
            logs |= {"loss_tokens": int(sums["loss_tokens"]), "tokens": int(sums["tokens"])}
            logs |= {"padding": 1 - sums["tokens"] / sums["places"], "seconds": now - self._last_point}
            logs |= self.measured(sums)
            self._sums = dict.fromkeys(self._names, 0.0)
            self._last_point = now
        super().log(logs, start_time)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the card is written once, with the finished model."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:  # noqa: ARG002
        return FixedOrder(self._order)
