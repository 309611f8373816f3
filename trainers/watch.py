"""Over-optimisation, seen in the loss curve: a preference loss can fall while the model unlearns what it should say.

Rafailov et al. (arXiv:2406.02900) and Pal et al. (arXiv:2402.13228) show that DPO widens the margin between chosen and
rejected even where both become unlikely. ``chosen_change`` and ``rejected_change`` are log-probability per token with
loss against the reference model, in nats; ``kl`` is KTO's estimate of the distance to it, in nats per completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

FAR = 0.5
"""Nats per token; a fall by so much leaves each token of the chosen side three fifths of its probability."""
WINDOW = 10
"""Points of the curve over which a fall is averaged."""
WATCHED = ("chosen_change", "rejected_change", "margin", "error", "kl")
"""What is told of the end of a training; ``error`` is that of a reward model, as is a ``margin`` without changes."""


def drift(curve: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Where the watched values were at the end, over the last tenth of the curve; empty for supervised training."""
    tail = curve[-max(1, len(curve) // 10) :]
    means = {name: mean(tail, name) for name in WATCHED}
    return {name: value for name, value in means.items() if value is not None}


def fallen(points: Sequence[dict[str, Any]]) -> str | None:
    """A warning if the chosen side became far less likely over the last ``WINDOW`` of ``points``."""
    last = points[-WINDOW:]
    change = mean(last, "chosen_change")
    if change is None or change >= -FAR:
        return None
    return (
        f"at step {last[-1]['step']} the chosen side is {-change:.2f} nats per token less likely than under the"
        " reference; train fewer steps, with a lower learning_rate or a higher beta, or (DPO) with the loss sft added"
    )


def warnings(curve: Sequence[dict[str, Any]]) -> list[str]:
    """What a user should know of a training: the first warning that it gave."""
    given = (fallen(curve[max(0, end - WINDOW) : end]) for end in range(1, len(curve) + 1))
    return [warning for warning in given if warning is not None][:1]


def mean(points: Sequence[dict[str, Any]], name: str) -> float | None:
    """The mean of what some points say, ``None`` if none says it."""
    values = [point[name] for point in points if point.get(name) is not None]
    return sum(values) / len(values) if values else None
