"""Fields of TRL's configuration that are given by their own names, checked against the installed TRL."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from enum import Enum
from importlib.metadata import version
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.kto_config import KTOConfig
from trl.trainer.reward_config import RewardConfig
from trl.trainer.sft_config import SFTConfig

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.trl_fields import SET_BY

CONFIGS: Mapping[str, type[TrainingArguments]] = {
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "kto": KTOConfig,
    "reward": RewardConfig,
}
"""TRL's configuration of each trainer."""


def check_trl_fields(trainer: str, given: Mapping[str, JsonValue]) -> None:
    """Raises ``UserError`` for a name that TRL's configuration of ``trainer`` has not, or a value of another type."""
    config = CONFIGS[trainer]
    hints = typing.get_type_hints(config)
    known = [field.name for field in fields(config) if field.init]
    for name, value in given.items():
        if name not in known:
            raise UserError(
                f"trl: {config.__name__} of TRL {version('trl')} has no field {name!r}.{near_match(name, known)}",
                ErrorCode.UNKNOWN_KEY,
            )
        _check_value(name, hints[name], value)


def _check_value(name: str, hint: object, value: JsonValue) -> None:
    # Settings of ours that are choices of TRL's are checked here too.
    shown = SET_BY.get(name, f"trl.{name}")
    # A choice is declared as `Choices | str`, which any text would satisfy.
    enums = [each for each in typing.get_args(hint) if isinstance(each, type) and issubclass(each, Enum)]
    choices = [member.value for enum in enums for member in enum]
    if choices:
        if value not in choices:
            raise UserError(
                f"{shown}: expected one of {', '.join(map(str, choices))}, got {value!r}."
                f"{near_match(str(value), map(str, choices))}",
                ErrorCode.INVALID_VALUE,
            )
        return
    try:
        # Strict, since TRL's dataclasses convert nothing: the text "5" would fail in the middle of a training.
        checker: TypeAdapter[object] = TypeAdapter(hint)  # type: ignore[arg-type]  # any annotation will do
        checker.validate_python(value, strict=True)
    except ValidationError as error:
        raise UserError(f"{shown}: expected {_type_name(hint)}, got {value!r}", ErrorCode.INVALID_VALUE) from error


def _type_name(hint: object) -> str:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("NoneType", "None")


@contextmanager
def trl_errors(given: Mapping[str, JsonValue], applies: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raises ``UserError`` where TRL refuses the fields ``given``: alone, together, or with the other settings.

    Other errors, those without fields of the user, and those of where this no longer ``applies``, pass.
    """
    try:
        yield
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        # Without fields of the user the mistake is ours, and the traceback is wanted.
        if not given or not applies():
            raise
        raise UserError(f"trl: {' '.join(str(error).split())[:300]}", ErrorCode.TRL_REFUSES) from error


def check_optimizer(arguments: TrainingArguments, model: Any) -> None:
    """Raises ``UserError`` where the optimizer needs a package, or a field in ``trl``, that is not there."""
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"optimizer: {OptimizerNames(arguments.optim).value}: {reason}", ErrorCode.TRL_REFUSES
        ) from error
