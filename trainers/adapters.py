"""Training on from a LoRA adapter: which model it belongs to, the settings of its matrices, and loading it to learn on.

Everything a training needs of an adapter that another one, of ours or not, has written.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel

from agentmill.schemas.adapter_settings import check_lora_agrees, disagreement, lora_of_adapter
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.model_hub import hub_model, pinned_model
from agentmill.schemas.models import (
    ADAPTER_CONFIG,
    TRAINING_RECORD,
    adapter_base,
    is_adapter,
    model_revision,
    read_json,
)
from agentmill.schemas.training import LoraConfig
from agentmill.trainers.command import TrainSettings
from agentmill.trainers.hub_models import hub_folder, output_of, revisions_of, with_pinned_models
from agentmill.trainers.model_io import Task, linear_layers, load_errors, model_folder

S = TypeVar("S", bound=TrainSettings)


class ModelFiles(NamedTuple):
    """The folder of a whole model, and that of an adapter of it."""

    base: Path
    adapter: Path | None = None

    @property
    def revision(self) -> str:
        """Digest of what is in the folders."""
        base = model_revision(self.base)
        return base if self.adapter is None else f"{base}+{model_revision(self.adapter)}"


def model_files(model: str, settings: TrainSettings, scores: bool = False) -> ModelFiles:
    """The folders that ``model`` names: those of a whole model, or of an adapter and the model it was trained on.

    It is one of the training with ``settings``. Raises ``UserError`` as ``model_folder``, for an adapter of another
    kind than LoRA and where its model is not found.
    """
    adapter = adapter_folder(model)
    if adapter is None:
        return ModelFiles(model_folder(model, scores))
    kind = read_json(adapter / ADAPTER_CONFIG).get("peft_type")
    if kind != "LORA":
        raise UserError(
            f"{model} is an adapter of the kind {kind}; expected a LoRA adapter, or a whole model",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    if (adapter_task(adapter) == "SEQ_CLS") != scores:
        holds = "writes text and cannot score it" if scores else "scores text and cannot continue it"
        raise UserError(f"{model} is the adapter of a model that {holds}", ErrorCode.MODEL_OF_WRONG_KIND)
    return ModelFiles(base_of(adapter, revisions=revisions_of(output_of(settings))), adapter)


def starting_point(settings: S, scores: bool = False) -> tuple[S, ModelFiles]:
    """``settings`` as they hold for the training, and the folders of what it starts from.

    Models on the Hub are downloaded, and named by their commit; the settings of an adapter go before the default ones.
    Raises ``UserError``.
    """
    settings = with_pinned_models(settings)
    start = model_files(settings.model, settings, scores)
    return with_lora_of(settings, start.adapter), start


def adapter_folder(model: str) -> Path | None:
    """The folder of the adapter that ``model`` names; ``None`` for anything else. Raises ``UserError``."""
    hub = hub_model(model)
    folder = hub_folder(hub) if hub is not None else Path(model).expanduser()
    return folder if is_adapter(folder) else None


def adapter_task(adapter: Path) -> Task:
    """What the adapter's model is for. Raises ``UserError`` if there is no adapter."""
    if not (adapter / ADAPTER_CONFIG).is_file():
        raise UserError(
            f"{adapter} holds no {ADAPTER_CONFIG}; expected the folder of a LoRA adapter", ErrorCode.NOT_AN_ADAPTER
        )
    # Adapters of others need not say it.
    return "SEQ_CLS" if read_json(adapter / ADAPTER_CONFIG).get("task_type") == "SEQ_CLS" else "CAUSAL_LM"


def base_of(adapter: Path, base: str | None = None, revisions: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The folder of the model that the adapter was trained on, by default as its own files name it.

    ``revisions`` has the commit of one on the Hub, if that is known. Raises ``UserError`` if it is not known, not
    there, or another.
    """
    named = base or adapter_base(adapter)
    if named is None:
        raise UserError(
            f"neither {TRAINING_RECORD} nor {ADAPTER_CONFIG} in {adapter} names the model that it was trained on;"
            " give the model with agentmill merge --base",
            ErrorCode.BASE_MODEL_UNKNOWN,
        )
    try:
        folder = model_folder(pinned_model(named, revisions), scores=True)
    except UserError as error:
        raise UserError(f"the adapter {adapter} belongs to {named}: {error}", error.code) from error
    revision, wanted = model_revision(folder), read_json(adapter / TRAINING_RECORD).get("base_revision")
    if wanted not in (None, revision):
        raise UserError(
            f"{folder} has the revision {revision}, and the adapter was trained on {wanted};"
            " give that model with agentmill merge --base",
            ErrorCode.BASE_MODEL_DIFFERS,
        )
    return folder


def with_lora_of(settings: S, adapter: Path | None) -> S:
    """``settings`` whose ``lora`` is that of the adapter the training goes on from.

    Of the matrices only ``dropout`` and ``merge`` may be given otherwise. Raises ``UserError`` for the rest.
    """
    if adapter is None:
        return settings
    found = read_json(adapter / ADAPTER_CONFIG)
    check_lora_agrees(settings.lora, found, str(adapter))
    return settings.model_copy(update={"lora": lora_of_adapter(settings.lora, found, str(adapter))})


def load_adapter(model: Any, adapter: Path, dropout: float) -> PeftModel:
    """``model`` with the matrices of ``adapter``, which learn on. Raises ``UserError`` for a damaged adapter."""
    with load_errors(adapter), warnings.catch_warnings():
        # Matrices that the file lacks would begin anew.
        warnings.filterwarnings("error", message=".*missing adapter keys")
        config = PeftLoraConfig.from_pretrained(str(adapter))
        config.lora_dropout = dropout
        return PeftModel.from_pretrained(model, adapter, is_trainable=True, config=config)


def check_all_linear(model: Any, lora: LoraConfig, adapter: Path) -> None:
    """Raises ``UserError`` where ``all-linear`` was given, and the adapter has matrices on some of the layers only."""
    found = read_json(adapter / ADAPTER_CONFIG).get("target_modules")
    if lora.target_modules == "all-linear" and (not isinstance(found, list) or set(found) != linear_layers(model)):
        raise disagreement("target_modules", lora.target_modules, str(adapter), found)
