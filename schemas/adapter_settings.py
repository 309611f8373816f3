"""The settings of a training that goes on from a LoRA adapter: those of the adapter, which it cannot change."""

from __future__ import annotations

from collections.abc import Mapping

from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.training import LoraConfig

PEFT_NAMES: Mapping[str, str] = {
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "target_modules": "target_modules",
}
"""What ``adapter_config.json`` calls the fields of ``LoraConfig``."""

CHANGEABLE = ("dropout", "merge")
"""What may differ from the adapter: it changes no matrix."""


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
        found = adapter.get(PEFT_NAMES[field])
        both = (sorted(each) if isinstance(each, list) else each for each in (wanted, found))
        if wanted != "all-linear" and len({repr(each) if isinstance(each, list) else each for each in both}) > 1:
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
    targets = adapter.get("target_modules")
    known = {field: adapter[name] for field, name in PEFT_NAMES.items() if adapter.get(name) is not None}
    # PEFT also takes a pattern of names, which is not ours to write.
    known["target_modules"] = sorted(targets) if isinstance(targets, list) else [str(targets)]
    # `all-linear` is compared with the layers of the model, once it is loaded.
    changed = {} if given is None else given.model_dump(include={*CHANGEABLE, "target_modules"}, exclude_unset=True)
    return validate(LoraConfig, {**known, **changed}, name)
