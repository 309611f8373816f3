"""Which GPUs the servers of models that are served together get: their own, or parts of one where they say how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

Groups = list[list[str]]
"""The GPUs of each server of a model."""

MEMORY_SHARE = "--gpu-memory-utilization"
"""vLLM's argument for the share of a GPU's memory that a server takes; by default nearly all."""

ROUNDING = 1e-9


def deal_gpus(
    models: Mapping[str, ModelConfig], gpus: Sequence[str], held: Mapping[str, tuple[ModelConfig, Groups]]
) -> dict[str, Groups]:
    """The GPUs of the servers of ``models``, beside those that other models have (``held``), by the same keys.

    A model without ``replicas`` gets one server, and more where GPUs are left. A GPU is shared only by servers that
    name their share of its memory. Raises ``UserError`` where they do not fit.
    """
    room = dict.fromkeys(gpus, 1.0)
    for model, groups in held.values():
        for gpu in (gpu for group in groups for gpu in group if gpu in room):
            room[gpu] -= memory_share(model.server)
    dealt: dict[str, Groups] = {key: [] for key in models}
    # Those that share last, since they can do with what the others leave.
    for key in sorted(models, key=lambda key: -memory_share(models[key].server)):
        server = models[key].server
        for _ in range(server.replicas or 1):
            group = _take(room, server, memory_share(server))
            if group is None:
                raise _too_few([*models.values(), *(model for model, _ in held.values())], len(gpus))
            dealt[key].append(group)
    growing = [key for key in models if models[key].server.replicas is None]
    while growing:
        key = min(growing, key=lambda key: len(dealt[key]))
        group = _take(room, models[key].server, 1.0)
        if group is None:
            growing.remove(key)
        else:
            dealt[key].append(group)
    return dealt


def memory_share(server: ServerConfig) -> float:
    """The share of the memory of each of its GPUs that a server takes; all of it, where its ``arguments`` do not say.

    Raises ``UserError`` for one that is no share.
    """
    words = [word for argument in server.arguments for word in argument.split("=", 1)]
    names = [word.replace("_", "-") for word in words]
    if MEMORY_SHARE not in names:
        return 1.0
    given = "".join(words[names.index(MEMORY_SHARE) + 1 :][:1])
    try:
        share = float(given)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UserError(
            f"server.arguments: {MEMORY_SHARE} is {given!r}; expected a number above 0 and up to 1, such as 0.45",
            ErrorCode.VALUE_MALFORMED,
        )
    return share


def _take(room: dict[str, float], server: ServerConfig, least: float) -> list[str] | None:
    """GPUs for one more server, the emptiest first, each with the room ``least``; ``None`` if they are too few."""
    size = server.tensor_parallel_size
    fitting = [gpu for gpu in room if room[gpu] >= least - ROUNDING]
    # Sorting is stable, so the order of the GPUs stays.
    group = sorted(fitting, key=lambda gpu: -room[gpu])[:size]
    if len(group) < size:
        return None
    for gpu in group:
        room[gpu] -= memory_share(server)
    return group


def _too_few(models: Sequence[ModelConfig], gpus: int) -> UserError:
    wanted = [
        f"{model.server.replicas or 1} server(s) of {model.server.tensor_parallel_size} GPU(s)"
        + (f" for {model.display_name}" if len(models) > 1 else "")
        for model in models
    ]
    advice = "lower `server.tensor_parallel_size` or `server.replicas`"
    if len(models) > 1:
        advice += (
            "; or let models share a GPU: give each of these its share of the memory, together below 1, as"
            f' `server.arguments: [{MEMORY_SHARE}, "0.45"]`'
        )
    return UserError(f"{', '.join(wanted)} do not fit on {gpus} GPU(s)\n{advice}", ErrorCode.GPUS_TOO_FEW)
