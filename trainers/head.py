"""TRL's fused output head, kept from the tokens without loss on every kind of device."""

from __future__ import annotations

import functools
from typing import Any

import torch

from agentmill.trainers.tokens import IGNORED

PER_TOKEN = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


def spare_tokens_without_loss(model: Any) -> None:
    """Make ``model``, which has TRL's fused head, compute it only where ``labels`` say that there is loss.

    TRL leaves out the other tokens on GPUs only. On CPU it computes all of them, which is half of the work for a small
    model with a large vocabulary. What comes out is what TRL's head gives: of shape (rows, tokens - 1), 0 without loss.
    """
    fused = model.forward
    narrowed: list[torch.Tensor] = []

    def keep_tokens_with_loss(_module: Any, _inputs: Any, output: Any) -> None:
        if narrowed:
            output.last_hidden_state = output.last_hidden_state[:, :-1][narrowed[0]]

    @functools.wraps(fused)
    def forward(*args: Any, labels: Any = None, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return fused(*args, labels=labels, **kwargs)
        following = labels[:, 1:]
        kept = following != IGNORED
        narrowed.append(kept)
        try:
            output = fused(*args, shift_labels=following[kept], fused_lm_head=True, **kwargs)
        finally:
            narrowed.clear()
        for name in PER_TOKEN:
            values = getattr(output, name)
            if values is not None:
                setattr(output, name, values.new_zeros(kept.shape).masked_scatter(kept, values))
        output.label_mask = kept
        return output

    model.base_model.register_forward_hook(keep_tokens_with_loss)
    model.forward = forward
