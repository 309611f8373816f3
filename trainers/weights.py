"""Models as training loads and writes them: language models, and models that score whole conversations."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.trainer.reward_trainer import suppress_seqcls_warning

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.trainers.loading import load_errors

Task = Literal["CAUSAL_LM", "SEQ_CLS"]
"""What a model is for, in PEFT's words: to go on with text, or to give one number for all of it."""

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
"""By their names in the header of a safetensors file."""

SCORE = "score"
"""The layer that makes the number."""


def load_weights(folder: Path, task: Task, dtype: torch.dtype, trusted: bool = False) -> Any:
    """The model in ``folder``; ``trusted``: its own code may run.

    One that is to score, and was none before, gets a new head, drawn from torch's seed.
    Raises ``UserError`` for a model that cannot be loaded whole, or a kind that has no form with such a head.
    """
    given = {"dtype": dtype, "trust_remote_code": trusted, "output_loading_info": True}
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
        return model
    if not hasattr(model, SCORE):
        raise UserError(
            f"the model {folder} cannot be made a reward model: {type(model).__name__} has another head",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    return model


def _scoring(folder: Path, given: dict[str, Any]) -> Any:
    try:
        with suppress_seqcls_warning():
            return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, **given)
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise
        raise UserError(
            f"the model {folder} cannot be made a reward model: {str(error).splitlines()[0]}",
            ErrorCode.MODEL_OF_WRONG_KIND,
        ) from error


def load_merged(base: Path, adapter: Path, task: Task, trusted: bool = False) -> Any:
    """The model in ``base`` with what ``adapter`` learnt added to its weights, in fp32."""
    model = load_weights(base, task, torch.float32, trusted)
    with load_errors(adapter):
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def kept_dtype(base: Path) -> torch.dtype:
    """The type that most weights of the model in ``base`` have in its files, or that its configuration names."""
    sizes: Counter[torch.dtype] = Counter()
    for path in base.glob("*.safetensors"):
        with load_errors(base), path.open("rb") as file:
            header = msgspec.json.decode(file.read(min(int.from_bytes(file.read(8), "little"), path.stat().st_size)))
        for name, tensor in header.items():
            if name != "__metadata__" and tensor["dtype"] in DTYPES:
                sizes[DTYPES[tensor["dtype"]]] += math.prod(tensor["shape"])
    if sizes:
        return sizes.most_common(1)[0][0]
    config: JsonObject = msgspec.json.decode((base / "config.json").read_bytes())
    texts = (each.get(key) for each in (config, config.get("text_config") or {}) for key in ("dtype", "torch_dtype"))
    return getattr(torch, next(filter(None, texts), "float32"))  # type: ignore[no-any-return]


def save_whole(model: Any, tokenizer: Any, base: Path, folder: Path, dtype: str | None = None) -> None:
    """Write ``model`` and its tokenizer to ``folder``, the weights as ``dtype``, by default that of ``base``."""
    if hasattr(model, SCORE):
        # By it the model finds the last token of what it scores.
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    model.to(DTYPES[dtype.upper().replace("FP", "F")] if dtype else kept_dtype(base)).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def save_adapter(raw: Path, tokenizer: Any, folder: Path) -> None:
    """Write the adapter that TRL saved in ``raw``, and its model's tokenizer, to ``folder``."""
    folder.mkdir()
    for path in raw.glob("adapter_*"):
        shutil.copy2(path, folder)
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Add the tokenizer, and let others read what is there."""
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
