"""What can be set for a training, in a recipe or for a trainer alone. Each setting is declared here only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.launch import LaunchConfig
from agentmill.schemas.lora import LoraConfig
from agentmill.schemas.monitoring import DriftLimits, Logger, Positive, ValidationConfig
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.process import read_template
from agentmill.schemas.trl_fields import NEEDED, NOT_SETTABLE, SET_BY

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
    """What identifies the ``chat_template`` of a training: a file counts by its content."""
    return setting if setting in (None, TRAINING_TEMPLATE) else digest(template_text(setting))


DEFAULT_OPTIMIZER = "adamw_torch_fused"

BITSANDBYTES_OPTIMIZERS = (
    *("adamw_bnb_8bit", "adamw_8bit", "ademamix", "ademamix_8bit", "lion_8bit", "lion_32bit"),
    *("paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"),
    *("paged_lion_32bit", "paged_lion_8bit", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
)
"""The optimizers of transformers that the package bitsandbytes has."""

WITHOUT_EFFECT = (
    *("max_dropped", "save_steps", "report_to", "trust_remote_code", "estimate"),
    # Of a row that comes again it changes the last digits only.
    "precompute_reference",
)
"""Settings that do not change what comes out of a training: one that is unfinished goes on with others."""

BASES: Mapping[str, str] = {"model": "base", "reference": "reference_base"}
"""The settings of a trainer that name models, and those that name the models of these where they are adapters."""

IDENTITY = "identity.json"
"""In the folder of an unfinished training: what decides what comes out of it. It is written first."""


def is_training(names: list[str]) -> bool:
    """Whether files with these paths in their folder are those of an unfinished training."""
    return any(IDENTITY in name for name in names)


class TrainConfig(Config):
    """What can be set for every training."""

    max_steps: Positive | None = Field(None, description="Optimizer steps; `null`: as many as `epochs` makes.")
    epochs: Annotated[float, Field(gt=0)] = Field(1.0, description="Passes over the rows, rounded up to whole steps.")
    batch_size: Positive = Field(8, description="Sequences, pairs or rows a process takes at once.")
    gradient_accumulation: Positive = Field(1, description="Batches that make one optimizer step.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(5e-5, description="Peak learning rate of the optimizer.")
    optimizer: str = Field(
        DEFAULT_OPTIMIZER,
        description="By transformers' name: `adamw_torch`, `adafactor`, `sgd`, …; with the extra `bitsandbytes`"
        " `adamw_8bit` (a quarter of the optimizer's memory) or `paged_adamw_8bit` (which also moves to the CPU).",
    )
    scheduler: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="How the rate goes on after the warm-up: down to 0, or constant."
    )
    warmup: Share = Field(0.05, description="Share of the steps in which the rate rises from 0.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="Weight decay of the optimizer.")
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
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="Seed of the row order, dropout and new weights; in a recipe by default derived from its seed."
    )
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Of the arithmetic. `auto`: bf16 where the processor has it, or with `weights: bf16`."
    )
    weights: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Of the trained weights, their gradients and AdamW's state. `bf16` takes half of the memory, but"
        " loses updates smaller than 1/256 of a weight, so a low learning rate learns less.",
    )
    attention: Literal["auto", "eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3"] = Field(
        "auto",
        description="By transformers' name. `auto`: sdpa where the model has it. Flash and flex need a GPU.",
    )
    liger: bool = Field(
        False,
        description="Liger's kernels for norms, rotary positions and feed-forward layers: less memory for activations."
        " Needs a GPU and the extra `liger`.",
    )
    save_dtype: Literal["bf16", "fp16", "fp32"] | None = Field(
        None, description="Type of the weights that are written; `null`: that of the model to start from."
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, a third slower.")
    save_steps: Positive | None = Field(50, description="Steps between checkpoints; `null`: none are written.")
    estimate: bool = Field(
        True,
        description="Measure some batches before the first step, and say how long the training takes and its memory.",
    )
    validation: ValidationConfig | None = Field(
        None, description="Rows to measure the loss on and not train on, such as `{share: 0.05}`; `null`: none."
    )
    report_to: list[Logger] = Field(
        [], description="Also log the curves to `tensorboard` (OUTPUT.tensorboard), `wandb` or `trackio`."
    )
    launch: LaunchConfig = Field(
        LaunchConfig(), description="In how many processes the training runs, and by which accelerate configuration."
    )
    trl: dict[str, JsonValue] = Field(
        {}, description="Other fields of TRL's configuration by their own names, such as `{adam_beta2: 0.95}`."
    )

    @property
    def needs_whole_sequences(self) -> bool:
        """Whether a process needs whole sequences, which rules out context parallelism."""
        return self.validates is not None

    @property
    def tries_model(self) -> bool:
        """Whether the model is run before the training, to see whether it keeps rows of a sequence apart."""
        return False

    @property
    def machine_settings(self) -> JsonObject:
        """The settings, as far as they are given, that the installed packages or the device may refuse."""
        names = ("trl", "optimizer", "attention", "liger")
        given = {name: getattr(self, name) for name in names if name in self.model_fields_set}
        quantize = self.lora.quantize if self.lora else None
        return given | ({"lora": {"quantize": quantize}} if quantize else {})

    @model_validator(mode="after")
    def _trl_fields_are_not_decided_elsewhere(self) -> Self:
        for name in self.trl:
            setting = name if name in type(self).model_fields else SET_BY.get(name)
            if setting or name in NOT_SETTABLE:
                what = f"set `{setting}` beside `trl`, not within it" if setting else NOT_SETTABLE[name]
                # The cause carries the code through pydantic.
                mistake = UserError(name, ErrorCode.TRL_FIELD_TAKEN)
                raise ValueError(f"{name!r} cannot be set in `trl`: {what}") from mistake
        return self

    @model_validator(mode="after")
    def _trl_fields_have_an_effect(self) -> Self:
        for name, needed in NEEDED.items():
            other, _, value = needed.partition(": ")
            given = getattr(self, other, None) or self.trl.get(other)
            met = value in given if value and isinstance(given, list) else given == value if value else bool(given)
            if name in self.trl and not met:
                raise ValueError(f"{name!r} in `trl` has no effect without {needed}; set that, or leave it out")
        if "optim_target_modules" in self.trl and not self.optimizer.startswith(("galore", "apollo")):
            raise ValueError(
                "'optim_target_modules' in `trl` has no effect on the optimizer "
                f"{self.optimizer}; set lora.target_modules to train some layers only, or take a galore_… optimizer"
            )
        alpha = self.trl.get("neftune_noise_alpha")
        if isinstance(alpha, int | float) and alpha < 0:
            raise ValueError(f"'neftune_noise_alpha' in `trl`: expected 0 or more, got {alpha}")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.max_steps is not None and "epochs" in self.model_fields_set:
            raise ValueError(
                f"epochs: {self.epochs:g} has no effect with max_steps: {self.max_steps}; leave one of them out"
                " (max_steps: null)"
            )
        return self

    @property
    def validates(self) -> ValidationConfig | None:
        """How the training is validated, ``None`` if it is not; a table ``validation_rows`` alone takes defaults."""
        table: object = getattr(self, "validation_rows", None)
        return self.validation if table is None else self.validation or ValidationConfig.model_validate({})

    @model_validator(mode="after")
    def _validation_fits(self) -> Self:
        found = self.validates
        if found is None:
            return self
        table: object = getattr(self, "validation_rows", None)
        if table is not None and (found.share is not None or found.split is not None):
            raise ValueError("validation_rows are the rows to validate on; leave out validation.share and .split")
        if table is None and found.share is None and found.split is None:
            raise ValueError("validation has no rows; give validation.share, validation.split or validation_rows")
        if found.keep == "best" and self.save_steps is None:
            raise ValueError("validation.keep: best is taken from the checkpoints, and save_steps: null writes none")
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.weights == "bf16" and self.lora:
            raise ValueError(
                "weights: bf16 is of weights that are trained, and lora keeps the others in bf16 where `precision` is;"
                " leave it out, or set lora.quantize for less memory"
            )
        if self.weights == "bf16" and self.precision == "fp32":
            raise ValueError("weights: bf16 cannot be computed with in fp32; leave out one of weights and precision")
        if self.precision == "fp32" and self.attention.startswith("flash"):
            raise ValueError(f"attention: {self.attention} computes in bf16 only; set precision: bf16, or take sdpa")
        return self

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
    share_prefixes: bool = Field(
        False,
        description="Train sequences of a trajectory that begin alike as one tree; `batch_size` then counts trees.",
    )

    @property
    def needs_whole_sequences(self) -> bool:
        """Also for packs and trees."""
        return self.tries_model or super().needs_whole_sequences

    @property
    def tries_model(self) -> bool:
        """With packs, and with trees."""
        return self.packing or self.share_prefixes

    @model_validator(mode="after")
    def _attention_sees_trees(self) -> Self:
        if self.share_prefixes and self.attention.startswith("flash"):
            raise ValueError(f"share_prefixes: attention {self.attention} takes no mask of a tree; take sdpa")
        return self


class PreferenceConfig(TrainConfig):
    """Training against a reference model; rows longer than ``max_length`` are dropped, since a part is not judged."""

    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-6, description="Peak learning rate of the optimizer.")
    beta: Annotated[float, Field(gt=0)] = Field(0.1, description="How strongly it is kept close to the reference.")
    stop_when: DriftLimits | None = Field(None, description="Limits that end the training early; `null`: none does.")
    precompute_reference: bool | None = Field(
        None,
        description="The reference scores each row once, before the first step; `null`: if that saves time or memory.",
    )

    @model_validator(mode="after")
    def _reference_stays(self) -> Self:
        if self.precompute_reference and self.trl.get("sync_ref_model"):
            raise ValueError(
                "precompute_reference: rows cannot be scored before the training if the reference changes during it"
                " (trl.sync_ref_model); leave one of them out"
            )
        if self.trl.get("sync_ref_model") and self.save_steps is not None:
            raise ValueError(
                "trl.sync_ref_model: no checkpoint holds the reference as it has become, so a training that is stopped"
                " could not go on; set save_steps: null, or leave it out"
            )
        if self.precompute_reference and self.validates is not None:
            raise ValueError(
                "precompute_reference: the reference is needed for the rows to validate on; leave it or validation out"
            )
        return self


class RewardConfig(TrainConfig):
    """A reward model from a table of ``PreferenceRow`` or ``ScorerRow``; longer rows are dropped, as for preferences.

    On pairs the loss is that of Bradley and Terry (arXiv:2203.02155), on values the mean squared error.
    """

    batch_size: Positive = Field(4, description="Pairs or conversations a process takes at once.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-5, description="Peak learning rate of the optimizer.")
    margin: bool = Field(
        False,
        description="Chosen shall be ahead by the difference of the row's scores (arXiv:2307.09288); pairs only.",
    )
    center_rewards_coefficient: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Pulls the mean reward to 0 (arXiv:2312.09244; TRL advises 0.01); pairs only."
    )

    @model_validator(mode="after")
    def _samples_nothing(self) -> Self:
        if self.validation is not None and self.validation.samples is not None:
            raise ValueError("validation.samples: a reward model scores conversations and continues none; leave it out")
        return self


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


SMOOTHED = frozenset({"robust", "exo_pair", "aot", "aot_unpaired"})
"""The losses that ``label_smoothing`` is for."""


class DpoConfig(PreferenceConfig):
    """Direct preference optimization (arXiv:2305.18290) on a table of ``PreferenceRow``."""

    batch_size: Positive = Field(4, description="Pairs a process takes at once.")
    loss_type: Annotated[list[PairLoss], Field(min_length=1)] = Field(
        ["sigmoid"], description="Losses that are added, in TRL's words; `sft` is the likelihood of the chosen side."
    )
    loss_weights: list[Annotated[float, Field(gt=0)]] | None = Field(
        None, description="The weight of each loss; `null`: all weigh 1."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.0, description="Share of pairs taken to be in the wrong order (robust, exo_pair and aot losses)."
    )

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.stop_when is not None and self.stop_when.kl is not None:
            raise ValueError("stop_when.kl is measured by KTO alone; for pairs limit chosen_change, margin or entropy")
        return self

    @model_validator(mode="after")
    def _losses_fit(self) -> Self:
        if self.loss_weights is not None and len(self.loss_weights) != len(self.loss_type):
            raise ValueError(f"loss_weights has {len(self.loss_weights)} weights for {len(self.loss_type)} losses")
        if "exo_pair" in self.loss_type and not self.label_smoothing:
            raise ValueError("the loss exo_pair needs label_smoothing above 0; its paper has 1e-3")
        if self.label_smoothing and not SMOOTHED.intersection(self.loss_type):
            raise ValueError(
                f"label_smoothing has no effect on the losses {', '.join(self.loss_type)}; leave it out, or take one of"
                f" {', '.join(sorted(SMOOTHED))}"
            )
        return self


class KtoConfig(PreferenceConfig):
    """Kahneman-Tversky optimization (arXiv:2402.01306) on a table of ``UnpairedRow``."""

    loss_type: Literal["kto", "apo_zero_unpaired"] = Field("kto", description="The loss, in TRL's words.")
    desirable_weight: Annotated[float, Field(gt=0)] = Field(1.0, description="Weight of the loss of good rows.")
    undesirable_weight: Annotated[float, Field(gt=0)] = Field(1.0, description="Weight of the loss of bad rows.")

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.stop_when is not None and self.stop_when.kl is not None and self.loss_type != "kto":
            raise ValueError(
                f"stop_when.kl is estimated by the loss kto alone, and not by {self.loss_type}; limit chosen_change or"
                " entropy"
            )
        return self

    @model_validator(mode="after")
    def _crosses_rows(self) -> Self:
        if self.loss_type == "kto" and self.batch_size == 1:
            raise ValueError(
                "batch_size: expected 2 or more, since KTO estimates the distance to the reference by crossing the"
                " rows of a batch; with less memory take batch_size=2 and more gradient_accumulation"
            )
        return self
