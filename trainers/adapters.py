"""LoRA adapters: making a new one, and training on from one that another training, of ours or not, has written."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel
from peft.utils.constants import EMBEDDING_LAYER_NAMES
from transformers.pytorch_utils import Conv1D

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.lora import LoraConfig, check_lora_agrees, disagreement, lora_of_adapter
from agentmill.schemas.model_hub import hub_model, pinned_model
from agentmill.schemas.models import (
    ADAPTER_CONFIG,
    TRAINING_RECORD,
    adapter_base,
    check_adapter_files,
    is_adapter,
    model_revision,
    read_json,
)
from agentmill.trainers.command import TrainSettings, output_of, say
from agentmill.trainers.hub_models import hub_folder, revisions_of, with_pinned_models
from agentmill.trainers.model_io import SCORE, Task, load_errors, load_weights, model_folder

S = TypeVar("S", bound=TrainSettings)

_OTHER_SHAPE = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\((.+?)\) from checkpoint,"
    r" the shape in current model is torch\.Size\((.+?)\)"
)
"""PyTorch's error for the first tensor that does not fit."""


class ModelFiles(NamedTuple):
    """The folder of a whole model, and that of an adapter of it."""

    base: Path
    adapter: Path | None = None

    @property
    def revision(self) -> str:
        """Digest of what is in the folders."""
        base = model_revision(self.base)
        return base if self.adapter is None else f"{base}+{model_revision(self.adapter)}"


def model_files(model: str, settings: TrainSettings, base: str | None, scores: bool = False) -> ModelFiles:
    """The folders that ``model`` names: those of a whole model, or of an adapter and the model it was trained on.

    It is one of the training with ``settings``. ``base`` is the model of the adapter, by default the one that its files
    name. Raises ``UserError`` as ``model_folder``, for an adapter of another kind than LoRA, where its model is not
    found, and for a ``base`` of what is no adapter.
    """
    adapter = adapter_folder(model)
    if adapter is None:
        if base is not None:
            raise UserError(
                f"{base} is given as the model of the adapter {model}, which is no adapter; leave it out",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
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
    return ModelFiles(base_of(adapter, base, revisions_of(output_of(settings))), adapter)


def starting_point(settings: S, scores: bool = False) -> tuple[S, ModelFiles]:
    """``settings`` as they hold for the training, and the folders of what it starts from.

    Models on the Hub are downloaded, and named by their commit; the settings of an adapter go before the default ones.
    Raises ``UserError``.
    """
    settings = with_pinned_models(settings)
    start = model_files(settings.model, settings, settings.base, scores)
    return with_lora_of(settings, start.adapter), start


def adapter_folder(model: str) -> Path | None:
    """The folder of the adapter that ``model`` names; ``None`` for anything else. Raises ``UserError``."""
    hub = hub_model(model)
    folder = hub_folder(hub) if hub is not None else Path(model).expanduser()
    return folder if is_adapter(folder) else None


def adapter_task(adapter: Path) -> Task:
    """What the adapter's model is for. Raises ``UserError`` if there is no adapter, or one without weights."""
    check_adapter_files(adapter, adapter)
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
            " give the model with agentmill merge --base, or as `base` of a training",
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
            " give that model with agentmill merge --base, or as `base` of a training",
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


def load_adapter(model: Any, adapter: Path, dropout: float | None = None) -> PeftModel:
    """``model`` with the matrices of ``adapter``, which learn on where a ``dropout`` is given.

    Raises ``UserError`` for an adapter that is damaged, lacks tensors, or has some that ``model`` has no layers for.
    """
    learns, config = dropout is not None, None
    with load_errors(adapter), warnings.catch_warnings():
        # That is found below, as an error.
        warnings.filterwarnings("ignore", message=".*missing adapter keys")
        if dropout is not None:
            config = PeftLoraConfig.from_pretrained(str(adapter))
            config.lora_dropout = dropout
        try:
            loaded = PeftModel.from_pretrained(model, adapter, is_trainable=learns, config=config)
        except RuntimeError as error:
            if (found := _OTHER_SHAPE.search(str(error))) is None:
                raise
            raise UserError(
                f"the adapter {adapter} does not fit the model: {found[1]} has the shape {found[2]} in the file, and"
                f" {found[3]} in the model\nit was trained on another model: name that one",
                ErrorCode.BASE_MODEL_DIFFERS,
            ) from error
        # Read once more: only this returns which names in the file PEFT had no use for.
        mapping = getattr(model, "_checkpoint_conversion_mapping", {})
        found = loaded.load_adapter(adapter, loaded.active_adapter, is_trainable=learns, key_mapping=mapping)
    check_tensors(adapter, found.missing_keys, found.unexpected_keys)
    return loaded


def check_tensors(adapter: Path, missing: Sequence[str], unknown: Sequence[str]) -> None:
    """Raises ``UserError`` for tensors that the file of an adapter lacks, or that its model has no layers for."""
    if unknown:
        raise UserError(
            f"the adapter {adapter} has {len(unknown)} tensors for layers that the model does not have, such as"
            f" {min(unknown)}\nit was trained on another model: name that one",
            ErrorCode.BASE_MODEL_DIFFERS,
        )
    # They would be as they are drawn, and change nothing.
    if missing:
        raise UserError(
            f"the adapter {adapter} lacks {len(missing)} of the tensors that the model takes, such as {min(missing)}\n"
            "its files are incomplete, or it was trained on another model: copy the folder again, or name that model",
            ErrorCode.MODEL_INCOMPLETE,
        )


def load_merged(base: Path, adapter: Path, task: Task, trusted: bool = False) -> Any:
    """The model in ``base`` with what ``adapter`` learnt added to its weights, in fp32. Raises ``UserError``."""
    model = load_weights(base, task, torch.float32, trusted)
    _check_biases(model, adapter)
    loaded = load_adapter(model, adapter)
    ends = {_path_of(model, layer) for layer in _ends(model)}
    # What is added to one would be added to both.
    if is_tied(model) and ends & set(loaded.targeted_module_names):
        _untie(model)
    with load_errors(adapter):
        return loaded.merge_and_unload()


def _untie(model: Any) -> None:
    """Give the output head weights of its own."""
    head, _ = _ends(model)
    layer = getattr(head, "base_layer", head)
    layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    say("the output head and the embedding shared their weights; each has its own now, since the adapter changes one")


def check_adapted(model: Any, lora: LoraConfig, adapter: Path) -> None:
    """Raises ``UserError`` for an adapter on the output head, with which no training goes on, where ``all-linear``
    was given, and it has matrices on some of the layers only, and for one that could not be merged in the end.
    """
    found, names = read_json(adapter / ADAPTER_CONFIG).get("target_modules"), _targets(adapter)
    if lora.merge:
        _check_biases(model, adapter)
    if lora.target_modules == "all-linear" and names != linear_layers(model):
        raise disagreement("target_modules", lora.target_modules, str(adapter), found)
    head = _name_of(model, model.get_output_embeddings())
    if head in names:
        raise UserError(
            f"the adapter {adapter} has matrices on the output head {head}, with which TRL does not go on\n"
            f"make it a whole model first: agentmill merge {adapter} --out MODEL",
            ErrorCode.LORA_DIFFERS,
        )


def _targets(adapter: Path) -> set[str]:
    """The layers of an adapter; PEFT keeps whole names where the last part is also that of another layer."""
    found = read_json(adapter / ADAPTER_CONFIG).get("target_modules")
    return {name.rpartition(".")[2] for name in found} if isinstance(found, list) else set()


def _check_biases(model: Any, adapter: Path) -> None:
    """Raises ``UserError`` for biases on layers that have none, to which they could not be added."""
    if not read_json(adapter / ADAPTER_CONFIG).get("lora_bias"):
        return
    layers = {name.rpartition(".")[2] for name, each in model.named_modules() if getattr(each, "bias", "") is None}
    if without := sorted(layers & _targets(adapter)):
        raise UserError(
            f"the adapter {adapter} has biases (lora_bias) for {', '.join(without)}, which have none in the model,"
            " and cannot be merged\nleave it an adapter: in a training lora.merge: false",
            ErrorCode.LORA_DIFFERS,
        )


def check_lora_targets(model: Any, lora: LoraConfig | None) -> None:
    """Raises ``UserError`` for a layer that ``lora`` names and the model does not have, or cannot train alone."""
    layers = linear_layers(model)
    # PEFT refuses only a list of which nothing matches; a misspelt name among right ones would be ignored.
    for target in lora.target_modules if lora and not isinstance(lora.target_modules, str) else ():
        if target not in layers:
            known = ", ".join(sorted(layers))
            raise UserError(
                f"lora.target_modules: no layer {target!r}; known: {known}.{near_match(target, layers)}",
                ErrorCode.UNKNOWN_NAME,
            )
    if lora and lora.modules_to_save:
        _check_modules_to_save(model, lora.modules_to_save)


def linear_layers(model: Any) -> set[str]:
    """The names of the layers that ``all-linear`` means: every linear one but the output head."""
    head = model.get_output_embeddings()
    linear = (torch.nn.Linear, Conv1D)  # the latter in GPT-2
    layers = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, linear)}
    return layers - {SCORE, *(name for name, layer in model.named_modules() if layer is head)}


def _check_modules_to_save(model: Any, names: list[str]) -> None:
    weights = {name: next(layer.parameters(recurse=False), None) for name, layer in model.named_modules()}
    # Quantized weights do not learn.
    known = {name.rpartition(".")[2] for name, each in weights.items() if each is not None and each.is_floating_point()}
    for name in names:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise UserError(
                f"lora.modules_to_save: no layer {name!r}; known: {listed}.{near_match(name, known)}",
                ErrorCode.UNKNOWN_NAME,
            )
    head, embedding = (_name_of(model, layer) for layer in _ends(model))
    # PEFT would train a copy of the head, which a merged model, whose head is the embedding, cannot hold. It keeps the
    # two together for embeddings of usual names only.
    if is_tied(model) and {head, embedding} & set(names) and embedding not in {*names} & {*EMBEDDING_LAYER_NAMES}:
        raise UserError(
            f"lora.modules_to_save: {head} has the weights of {embedding} in this model, and PEFT trains both together"
            " only by the name embed_tokens; name that, or train all weights (lora: null)",
            ErrorCode.NEEDS_ANOTHER_KEY,
        )


def is_tied(model: Any) -> bool:
    """Whether the output head of ``model`` has the weights of its embedding."""
    head, embedding = _ends(model)
    return head is not None and head.weight is embedding.weight


def _ends(model: Any) -> tuple[Any, Any]:
    return model.get_output_embeddings(), model.get_input_embeddings()


def _name_of(model: Any, wanted: Any) -> str:
    return _path_of(model, wanted).rpartition(".")[2]


def _path_of(model: Any, wanted: Any) -> str:
    return next((name for name, layer in model.named_modules() if layer is wanted), "")


def lora_config(lora: LoraConfig | None, task: Task, tied: bool = False) -> PeftLoraConfig | None:
    """Our LoRA settings in PEFT's words; a head that scores learns with the matrices and is saved with them.

    ``tied``: the model's head and embedding are one, and stay so where it is trained in full.
    """
    if lora is None:
        return None
    return PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type=task,
        use_dora=lora.dora,
        use_rslora=lora.rslora,
        modules_to_save=lora.modules_to_save,
        ensure_weight_tying=tied and bool({*(lora.modules_to_save or ())} & {*EMBEDDING_LAYER_NAMES}),
    )
