"""Models in and out: which folder is meant, loading with its mistakes explained, and writing a folder."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, BitsAndBytesConfig
from transformers.integrations.liger import apply_liger_kernel
from trl.trainer.reward_trainer import suppress_seqcls_warning

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.model_hub import hub_model
from agentmill.schemas.models import BUNDLED, is_adapter, is_reward_model, read_json
from agentmill.schemas.templates.process import check_size
from agentmill.schemas.training import TRAINING_TEMPLATE, TrainConfig, template_text
from agentmill.trainers.bundled import bundled_model
from agentmill.trainers.chat_template import piece_tokenizer, training_template
from agentmill.trainers.command import say
from agentmill.trainers.hub_models import hub_folder

PREFIX = "bundled:"

NO_SUCH_ATTENTION = re.compile(r"does not support (an attention implementation|Flash Attention)")
"""The message of transformers for a model that lacks the attention that was asked for."""


def model_folder(model: str, scores: bool = False) -> Path:
    """The folder that ``model`` names: ``bundled:NAME``, on the Hub ``ORG/NAME[@REVISION]``, or a path.

    Raises ``UserError`` where it holds no model, or a reward model where none is asked for (``scores``).
    """
    if model.startswith(PREFIX):
        return bundled_model(model.removeprefix(PREFIX))
    hub = hub_model(model)
    folder = Path(model).expanduser() if hub is None else hub_folder(hub)
    if (folder / "config.json").is_file():
        if not scores and is_reward_model(folder):
            raise UserError(
                f"{model} holds a reward model, which scores text and cannot continue it",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )
        return folder
    if is_adapter(folder):
        raise UserError(
            f"{model} holds a LoRA adapter, no model; make it one:"
            f" agentmill merge {model} --out {model.rstrip('/')}-merged",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    wrong = "holds no config.json" if folder.is_dir() else "does not exist"
    hint = f" Did you mean {PREFIX}{model}?" if model in BUNDLED else ""
    raise UserError(
        f"the model folder {model} {wrong}; expected a transformers model folder, {PREFIX}NAME or"
        f" ORG/NAME[@REVISION] on the Hub.{hint}",
        ErrorCode.MODEL_MISSING,
    )


@contextmanager
def load_errors(folder: Path) -> Iterator[None]:
    """Raises ``UserError`` for whatever a library raises over the files of the model in ``folder``.

    A model with code of its own that may not be run (``trust_remote_code``) is refused in one line.
    """
    try:
        yield
    # These do not come from the files: a package is missing, or the machine is too small.
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, for a GPU
            raise
        if "trust_remote_code" in str(error):
            raise UserError(
                f"the model {folder} needs code of its own; read it, then set trust_remote_code, or take another model",
                ErrorCode.MAY_RUN_CODE,
            ) from error
        reason = " ".join(str(error).split())[:200]
        if NO_SUCH_ATTENTION.search(reason):
            raise UserError(f"attention: {reason}\ntake sdpa or eager", ErrorCode.MODEL_OF_WRONG_KIND) from error
        raise UserError(
            f"the model {folder} cannot be loaded ({type(error).__name__}: {reason})\n"
            "its files are damaged, incomplete or of a kind that transformers does not know here:"
            " copy the folder again",
            ErrorCode.MODEL_UNREADABLE,
        ) from error


def load_tokenizer(base: Path, template: str | None = None, trusted: bool = False) -> Any:
    """The model's tokenizer, with the chat template that ``template`` names (``TrainSettings.chat_template``).

    ``trusted``: code of the model's own may run. Raises ``UserError`` if it cannot be loaded, cannot render a
    conversation or cannot place its tokens in it.
    """
    with load_errors(base):
        tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=trusted)
    if template is not None and template != TRAINING_TEMPLATE:
        tokenizer.chat_template = template_text(template)
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {base} has no chat template; name a file with one as `chat_template`,"
            " or start from an instruct model",
            ErrorCode.MODEL_WITHOUT_TEMPLATE,
        )
    # Before TRL looks for a training version, for which it renders the template.
    check_size(str(tokenizer.chat_template))
    if template == TRAINING_TEMPLATE:
        tokenizer.chat_template = training_template(tokenizer)
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer in {base} does not give the offsets of its tokens; convert it to tokenizer.json",
            ErrorCode.TOKENIZER_UNFIT,
        )
    # Refuses one that cannot tokenise a conversation in pieces.
    piece_tokenizer(tokenizer)
    return tokenizer


Task = Literal["CAUSAL_LM", "SEQ_CLS"]
"""What a model is for, in PEFT's words: to continue a text, or to give one number for all of it."""

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
"""By their names in the header of a safetensors file."""

EFFICIENT_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"
"""The environment variable by which transformers loads weights in one process of a machine, zeros in the others."""

SCORE = "score"
"""The layer that makes the number."""


@contextmanager
def every_process_loads() -> Iterator[None]:
    """Have each process load a model whole; under FSDP the others may wait for the weights of the first instead."""
    before = os.environ.get(EFFICIENT_LOADING)
    os.environ[EFFICIENT_LOADING] = "false"
    try:
        yield
    finally:
        # accelerate reads it when the trainer is made.
        if before is None:
            del os.environ[EFFICIENT_LOADING]
        else:
            os.environ[EFFICIENT_LOADING] = before


def load_weights(folder: Path, task: Task, dtype: torch.dtype, trusted: bool = False, **loading: Any) -> Any:
    """The model in ``folder``; ``trusted``: its own code may run. ``loading`` is given to ``from_pretrained``.

    One that is to score, and was none before, gets a new head, drawn from torch's seed.
    Raises ``UserError`` for a model that cannot be loaded whole, or a kind that has no form with such a head.
    """
    # transformers draws weights that the files lack at random and only warns; the loading info names them.
    given = {"dtype": dtype, "trust_remote_code": trusted, "output_loading_info": True, **loading}
    with load_errors(folder):
        if task == "CAUSAL_LM":
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **given)
        else:
            loaded = _scoring(folder, given)
        model, found = loaded
    missing = sorted(name for name in found["missing_keys"] if not name.startswith(f"{SCORE}."))
    if missing:
        raise UserError(
            f"the model {folder} lacks {len(missing)} of its weights, such as {missing[0]}\n"
            "its files are incomplete: copy the folder again",
            ErrorCode.MODEL_INCOMPLETE,
        )
    if task == "CAUSAL_LM":
        _check_generation(model, folder)
        return model
    if not hasattr(model, SCORE):
        raise UserError(
            f"the model {folder} cannot be made a reward model: {type(model).__name__} has another head",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    return model


def _check_generation(model: Any, folder: Path) -> None:
    """See that transformers can write ``generation_config.json`` again, which it does only where all of it agrees.

    A model whose file names a temperature, or another setting of sampling, is one that samples; many lack the key that
    switches it on. Raises ``UserError`` for what else transformers would refuse once the model is trained.
    """
    file, generation = folder / "generation_config.json", model.generation_config
    if generation is None or not _refused(generation):
        return
    generation.do_sample = True
    if reason := _refused(generation):
        raise UserError(
            f"transformers cannot write {file} again with the trained model: {reason}\n"
            "mend it in a copy of the folder, or remove it there",
            ErrorCode.MODEL_UNREADABLE,
        )
    say(f"do_sample is set to true, since {file} names settings of sampling without it")


def _refused(generation: Any) -> str:
    try:
        generation.validate(strict=True)
    except ValueError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _scoring(folder: Path, given: dict[str, Any]) -> Any:
    try:
        with suppress_seqcls_warning():
            return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, **given)
    except ValueError as error:
        # load_errors, which is around this call, has a message of its own for it.
        if "trust_remote_code" in str(error):
            raise
        raise UserError(
            f"the model {folder} cannot be made a reward model: {str(error).splitlines()[0]}",
            ErrorCode.MODEL_OF_WRONG_KIND,
        ) from error


def load_model(base: Path, settings: TrainConfig, precision: str, task: Task = "CAUSAL_LM") -> Any:
    """The model in ``base`` to be trained as ``settings`` say, its weights in ``settings.weights``.

    They are in bf16 or quantized where they do not learn and are computed with in bf16 anyway. Raises ``UserError``
    where the model has no such attention or no kernels of Liger.
    """
    lora = settings.lora
    half = settings.weights == "bf16" or (lora is not None and precision == "bf16")
    dtype = torch.bfloat16 if half else torch.float32
    loading: dict[str, Any] = {}
    if settings.attention != "auto":
        loading["attn_implementation"] = settings.attention
    if lora is not None and lora.quantize:
        loading["quantization_config"] = quantization(lora.quantize, dtype)
    model = load_weights(base, task, dtype, settings.trust_remote_code, **loading)
    used = attention_of(model)
    # transformers falls back on another kernel where a model names those that it is made for, and only logs it.
    if settings.attention not in ("auto", used):
        raise UserError(
            f"attention: {type(model).__name__} would use {used} in the place of {settings.attention}; set {used}",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    if settings.liger:
        apply_liger(model)
    # What learns in full along with matrices; the rest may be in bf16.
    full = [SCORE] * (task == "SEQ_CLS") + [*(lora.modules_to_save or () if lora else ())]
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in full and settings.weights == "fp32":
            layer.float()
    return model


def quantization(bits: str, dtype: torch.dtype) -> BitsAndBytesConfig:
    """How base weights are kept: in 8 bits, or as in QLoRA in 4 (NF4 with quantized scales), computed as ``dtype``."""
    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def attention_of(model: Any) -> str:
    """The attention that ``model`` computes with, by transformers' name."""
    return str(model.config._attn_implementation)


def apply_liger(model: Any) -> None:
    """Put Liger's kernels in the place of the layers of ``model``. Raises ``UserError`` where it has none for them.

    The loss is not Liger's: that of the trainers already leaves out all tokens without loss.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KINDS

    kind = model.config.model_type
    # Liger leaves such a model as it is, and only logs it.
    if kind not in KINDS:
        raise UserError(
            f"liger: it has no kernels for models of the type {kind!r}; leave it out", ErrorCode.MODEL_OF_WRONG_KIND
        )
    apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})


def kept_dtype(base: Path) -> torch.dtype:
    """The type that most weights of the model in ``base`` have in its files, or that its configuration names."""
    sizes: Counter[torch.dtype] = Counter()
    for path in base.glob("*.safetensors"):
        with load_errors(base), path.open("rb") as file:
            # The first eight bytes are the length of the header. In a damaged file they may name more than any memory
            # holds.
            header = msgspec.json.decode(file.read(min(int.from_bytes(file.read(8), "little"), path.stat().st_size)))
        for name, tensor in header.items():
            if name != "__metadata__" and tensor["dtype"] in DTYPES:
                sizes[DTYPES[tensor["dtype"]]] += math.prod(tensor["shape"])
    # By the number of values, since models in bf16 often keep norms in fp32.
    if sizes:
        return sizes.most_common(1)[0][0]
    config = read_json(base / "config.json")
    # Multimodal models have the type in a part of the configuration, and transformers 4 calls it torch_dtype.
    texts = (each.get(key) for each in (config, config.get("text_config") or {}) for key in ("dtype", "torch_dtype"))
    return getattr(torch, next(filter(None, texts), "float32"))  # type: ignore[no-any-return]


def save_whole(model: Any, tokenizer: Any, base: Path, folder: Path, dtype: str | None = None) -> None:
    """Write ``model`` and its tokenizer to ``folder``, the weights as ``dtype``, by default that of ``base``."""
    if hasattr(model, SCORE):
        # By it the model finds the last token of what it scores.
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    # The Trainer switches it off for its steps.
    model.config.use_cache = read_json(base / "config.json").get("use_cache", True)
    model.to(DTYPES[dtype.upper().replace("FP", "F")] if dtype else kept_dtype(base)).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def save_adapter(raw: Path, tokenizer: Any, folder: Path) -> None:
    """Write the adapter that TRL saved in ``raw``, and its model's tokenizer, to ``folder``."""
    folder.mkdir()
    # What else TRL saves there is not of the adapter, such as pickled training arguments.
    for path in raw.glob("adapter_*"):
        shutil.copy2(path, folder)
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Add the tokenizer, and let others read what is there."""
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
