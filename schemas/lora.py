"""LoRA: the settings of a training with it, and those of one that goes on from an adapter, which it cannot change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from agentmill.schemas.config import Config, validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject


class LoraConfig(Config):
    """Low-rank adaptation (arXiv:2106.09685): the base weights stay as they are, small matrices with them learn."""

    rank: Annotated[int, Field(ge=1)] = Field(16, description="Rank of the matrices.")
    alpha: Annotated[float, Field(gt=0)] = Field(32.0, description="What they add is scaled by alpha / rank.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of their inputs that is dropped while training."
    )
    target_modules: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"] = Field(
        "all-linear", description="Names of the layers that get them; `all-linear` is every one but the output head."
    )
    dora: bool = Field(
        False, description="Also learn a length for each output of a layer (arXiv:2402.09353); slower, often better."
    )
    rslora: bool = Field(
        False, description="Scale by alpha / sqrt(rank), so that high ranks learn as fast (arXiv:2312.03732)."
    )
    modules_to_save: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="Layers trained in full along with the matrices and kept with them, such as `embed_tokens`."
    )
    quantize: Literal["4bit", "8bit"] | None = Field(
        None,
        description="Keep the base weights in 4 or 8 bits while training (QLoRA, arXiv:2305.14314): a quarter or half"
        " of the memory of bf16. Merged into the whole weights. Needs the extra `bitsandbytes`.",
    )
    # A training makes a model: merged, it can be served, evaluated and trained further without its base.
    merge: bool = Field(
        True, description="Write a whole model, the matrices added to the base weights; false: the adapter alone."
    )

    @property
    def not_served(self) -> list[str]:
        """The settings that make an adapter which vLLM refuses to serve with its model."""
        return [name for name in ("dora", "modules_to_save") if getattr(self, name)]


PEFT_NAMES: Mapping[str, str] = {
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "target_modules": "target_modules",
    "dora": "use_dora",
    "rslora": "use_rslora",
    "modules_to_save": "modules_to_save",
}
"""What ``adapter_config.json`` calls the fields of ``LoraConfig``."""

PEFT_DEFAULTS: Mapping[str, float] = {"rank": 8, "alpha": 8}
"""PEFT's defaults that are not ours."""

CHANGEABLE = ("dropout", "quantize", "merge")
"""What may differ from the adapter: it changes no matrix."""

HEADS = {"classifier", "score"}
"""What PEFT adds to the layers of a reward model's adapter that are kept whole."""


def check_lora_agrees(given: LoraConfig | None, adapter: JsonObject, name: str) -> None:
    """Raises ``UserError`` for fields that were ``given`` and are otherwise in the configuration of an adapter.

    ``all-linear`` is compared once the layers of the model are known (``trainers.adapters.check_all_linear``).
    """
    for field in sorted(given.model_fields_set - {*CHANGEABLE}) if given is not None else ():
        wanted = getattr(given, field)
        if field not in PEFT_NAMES:
            raise UserError(
                f"lora.{field} is set when an adapter is made, and this training goes on from {name}; leave it out",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        found = _field(adapter, field)
        # The order of names means nothing.
        same = (
            sorted(wanted) == sorted(found) if isinstance(wanted, list) and isinstance(found, list) else wanted == found
        )
        if wanted != "all-linear" and not same:
            raise disagreement(field, wanted, name, found)


def disagreement(field: str, wanted: object, name: str, found: object) -> UserError:
    """The error for a field of ``lora`` that is not that of the adapter."""
    return UserError(
        f"lora.{field} is {wanted}, and the adapter {name} to go on from has {found}\n"
        f"leave lora.{field} out, or make the adapter a whole model first: agentmill merge {name} --out MODEL",
        ErrorCode.LORA_DIFFERS,
    )


def lora_of_adapter(given: LoraConfig | None, adapter: JsonObject, name: str) -> LoraConfig:
    """The settings of an adapter, from its configuration, with what was ``given`` of those that may differ.

    Raises ``UserError`` for a configuration that is no LoRA adapter's.
    """
    known = {field: _field(adapter, field) for field in PEFT_NAMES}
    # PEFT also takes a pattern of names, which is not ours to write.
    targets = known["target_modules"]
    if adapter.get("target_parameters") and not targets:
        raise UserError(
            f"{name} has matrices on parameters (target_parameters), and training goes on from matrices on layers only"
            " (target_modules); start from its base, or from a model that it was merged into",
            ErrorCode.LORA_DIFFERS,
        )
    known["target_modules"] = sorted(targets) if isinstance(targets, list) else [str(targets)]
    # `all-linear` is compared with the layers of the model, once it is loaded.
    changed = {} if given is None else given.model_dump(include={*CHANGEABLE, "target_modules"}, exclude_unset=True)
    return validate(LoraConfig, {**known, **changed}, name)


def _field(adapter: JsonObject, field: str) -> Any:
    """What an adapter has for a field of ``LoraConfig``; PEFT's default where its file does not say."""
    found = adapter.get(PEFT_NAMES[field])
    if field == "modules_to_save":
        return sorted({*(found or ())} - HEADS) or None
    default = PEFT_DEFAULTS.get(field, LoraConfig.model_fields[field].default)
    return default if found is None else found
