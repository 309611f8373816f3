"""What can be set for a training, in a recipe or for a trainer alone. Each setting is declared here only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.templates.process import read_template

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]

TRAINING_TEMPLATE = "training"
"""The ``chat_template`` of a training for TRL's version of the model's template."""


def template_text(path: str) -> str:
    """The chat template in a file. Raises ``UserError`` if there is none, or none that can be read."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"chat_template: {path} is no file; expected `{TRAINING_TEMPLATE}` or the path of a Jinja template",
            ErrorCode.NO_SUCH_FILE,
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


class LoraConfig(Config):
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


class TrainConfig(Config):
    """What can be set for every training."""

    max_steps: Positive | None = Field(None, description="Optimizer steps; `null`: as many as `epochs` makes.")
    epochs: Annotated[float, Field(gt=0)] = Field(1.0, description="Passes over the rows, rounded up to whole steps.")
    batch_size: Positive = Field(8, description="Sequences, pairs or rows a process takes at once.")
    gradient_accumulation: Positive = Field(1, description="Batches that make one optimizer step.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(5e-5, description="Peak learning rate of AdamW.")
    scheduler: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="How the rate goes on after the warm-up: down to 0, or constant."
    )
    warmup: Share = Field(0.05, description="Share of the steps in which the rate rises from 0.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="Weight decay of AdamW.")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Gradients are scaled down to this norm.")
    max_length: Annotated[int, Field(ge=16)] = Field(
        2048, description="Longest sequence in tokens; never more than the model's own context."
    )
    chat_template: str | None = Field(
        None,
        description="`training`: TRL's version of the model's, which keeps earlier turns; or a file. Saved with it.",
    )
    trust_remote_code: bool = Field(
        False, description="Run the Python code that a model folder brings; false: a model that needs it is refused."
    )
    control_tokens: Literal["text", "drop"] = Field(
        "text", description="Control tokens that a message spells out stay text, or the row is dropped."
    )
    max_dropped: Annotated[float, Field(ge=0, le=1)] = Field(
        0.05, description="Largest share of rows that may be dropped; with more the training does not start."
    )
    lora: LoraConfig | None = Field(None, description="Train low-rank matrices; `null`: all weights.")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Seed of the row order, dropout and new weights; in a recipe by default derived from its seed."
    )
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Of the arithmetic; weights are kept in fp32. `auto`: bf16 where the processor has it."
    )
    save_dtype: Literal["bf16", "fp16", "fp32"] | None = Field(
        None, description="Type of the weights that are written; `null`: that of the model to start from."
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, a third slower.")
    save_steps: Positive | None = Field(50, description="Steps between checkpoints; `null`: none are written.")
    tensorboard: bool = Field(
        False, description="Also write the loss curve for TensorBoard, to the output's name with `.tensorboard`."
    )

    @model_validator(mode="after")
    def _writes_weights(self) -> Self:
        if self.save_dtype and self.lora and not self.lora.merge:
            raise ValueError(
                "save_dtype is of whole models, and an adapter is written; leave it out, or set lora.merge"
            )
        return self


class SftConfig(TrainConfig):
    """Supervised fine-tuning on a table of ``SftRow``; the objective ``dft`` is that of arXiv:2508.05629."""

    long_rows: Literal["window", "drop"] = Field(
        "window", description="Longer rows are cut into windows at turn boundaries, or dropped."
    )
    objective: Literal["nll", "dft"] = Field(
        "nll", description="Negative log-likelihood, or dynamic fine-tuning: each token's loss times its probability."
    )
    packing: bool = Field(
        False, description="Put short rows together up to `max_length`; `batch_size` then counts packs."
    )


class PreferenceConfig(TrainConfig):
    """Training against a reference model; rows longer than ``max_length`` are dropped, since a part is not judged."""

    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-6, description="Peak learning rate of AdamW.")
    beta: Annotated[float, Field(gt=0)] = Field(0.1, description="How strongly it is kept close to the reference.")


class RewardConfig(TrainConfig):
    """A reward model from a table of ``PreferenceRow`` or ``ScorerRow``; longer rows are dropped, as for preferences.

    On pairs the loss is that of Bradley and Terry (arXiv:2203.02155), on values the mean squared error.
    """

    batch_size: Positive = Field(4, description="Pairs or conversations a process takes at once.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-5, description="Peak learning rate of AdamW.")
    margin: bool = Field(
        False,
        description="Chosen shall be ahead by the difference of the row's scores (arXiv:2307.09288); pairs only.",
    )
    center_rewards_coefficient: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Pulls the mean reward to 0 (arXiv:2312.09244; TRL advises 0.01); pairs only."
    )


PairLoss = Literal[
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "sigmoid_norm",
]
"""The losses of TRL on pairs; ``sft`` is the negative log-likelihood of the chosen side, to be added to another."""


class DpoConfig(PreferenceConfig):
    """Direct preference optimization (arXiv:2305.18290) on a table of ``PreferenceRow``."""

    batch_size: Positive = Field(4, description="Pairs a process takes at once.")
    loss_type: Annotated[list[PairLoss], Field(min_length=1)] = Field(
        ["sigmoid"], description="Losses that are added, in TRL's words; `sft` is the likelihood of the chosen side."
    )
    loss_weights: list[float] | None = Field(None, description="The weight of each loss; `null`: all weigh 1.")
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.0, description="Share of pairs taken to be in the wrong order (robust, exo_pair and aot losses)."
    )

    @model_validator(mode="after")
    def _losses_fit(self) -> Self:
        if self.loss_weights is not None and len(self.loss_weights) != len(self.loss_type):
            raise ValueError(f"loss_weights has {len(self.loss_weights)} weights for {len(self.loss_type)} losses")
        if "exo_pair" in self.loss_type and not self.label_smoothing:
            raise ValueError("the loss exo_pair needs label_smoothing above 0; its paper has 1e-3")
        return self


class KtoConfig(PreferenceConfig):
    """Kahneman-Tversky optimization (arXiv:2402.01306) on a table of ``UnpairedRow``."""

    loss_type: Literal["kto", "apo_zero_unpaired"] = Field("kto", description="The loss, in TRL's words.")
    desirable_weight: Annotated[float, Field(gt=0)] = Field(1.0, description="Weight of the loss of good rows.")
    undesirable_weight: Annotated[float, Field(gt=0)] = Field(1.0, description="Weight of the loss of bad rows.")

    @model_validator(mode="after")
    def _crosses_rows(self) -> Self:
        if self.loss_type == "kto" and self.batch_size == 1:
            raise ValueError(
                "batch_size: expected 2 or more, since KTO estimates the distance to the reference by crossing the"
                " rows of a batch; with less memory take batch_size=2 and more gradient_accumulation"
            )
        return self
