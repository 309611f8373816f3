"""Settings of a training that recipes and trainers share. Each default is declared here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from schemas.config import Config
from schemas.errors import UserError
from schemas.ids import digest
from schemas.template_process import read_template

TRAINING_TEMPLATE = "training"
"""The ``chat_template`` of a training for TRL's version of the model's template."""


def template_text(path: str) -> str:
    """The chat template in a file. Raises ``UserError`` if there is none, or none that can be read."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"chat_template: {path} is no file; expected `{TRAINING_TEMPLATE}` or the path of a Jinja template"
        )
    return read_template(file)


def template_identity(setting: str | None) -> str | None:
    """What tells the ``chat_template`` of a training apart from others: a file counts by its content."""
    return setting if setting in (None, TRAINING_TEMPLATE) else digest(template_text(setting))


IDENTITY = "identity.json"
"""In the folder of an unfinished training: what decides what comes out of it. It is written first."""


def is_training(names: list[str]) -> bool:
    """Whether files with these paths in their folder are those of an unfinished training."""
    return any(IDENTITY in name for name in names)


class LoraSettings(Config):
    """Low-rank adaptation (arXiv:2106.09685): the base weights stay as they are, small matrices beside them learn."""

    rank: Annotated[int, Field(ge=1)] = Field(16, description="Rank of the matrices.")
    alpha: Annotated[float, Field(gt=0)] = Field(32.0, description="What they add is scaled by alpha / rank.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of their inputs that is dropped while training."
    )
    target_modules: list[str] | Literal["all-linear"] = Field(
        "all-linear", description="Names of the layers that get them; `all-linear` is every one but the output head."
    )
    # A training makes a model: merged, it can be served, evaluated and trained further without its base.
    merge: bool = Field(
        True, description="Write a whole model, the matrices added to the base weights; false: the adapter alone."
    )


def check_written(save_dtype: str | None, lora: LoraSettings | None) -> None:
    """Raises ``ValueError`` where a type is named for the weights of a model, and an adapter is written."""
    if save_dtype and lora and not lora.merge:
        raise ValueError("save_dtype is of whole models, and an adapter is written; leave it out, or set lora.merge")


def check_losses(names: Sequence[str] | None, weights: Sequence[float] | None, smoothing: float | None) -> None:
    """Raises ``ValueError`` where the settings of a loss on pairs do not go together; ``None`` is a default."""
    number = 1 if names is None else len(names)
    if weights is not None and len(weights) != number:
        raise ValueError(f"loss_weights has {len(weights)} weights for {number} losses")
    if "exo_pair" in (names or ()) and not smoothing:
        raise ValueError("the loss exo_pair needs label_smoothing above 0; its paper has 1e-3")


def check_crossed(loss: str | None, batch_size: int | None) -> None:
    """Raises ``ValueError`` for KTO on single rows; ``None`` is a default."""
    if loss in (None, "kto") and batch_size == 1:
        raise ValueError(
            "batch_size: expected 2 or more, since KTO estimates the distance to the reference by crossing the"
            " rows of a batch; with less memory take batch_size=2 and more gradient_accumulation"
        )
