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
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.trainer.reward_trainer import suppress_seqcls_warning

from schemas.errors import UserError

Task = Literal["CAUSAL_LM", "SEQ_CLS"]
"""What a model is for, in PEFT's words: to go on with text, or to give one number for all of it."""

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
"""By their names in the header of a safetensors file."""

SCORE = "score"
"""The layer that makes the number."""


def load_weights(folder: Path, task: Task, dtype: torch.dtype) -> Any:
    """The model in ``folder``. One that is to score, and was none before, gets a new head, drawn from torch's seed.

    Raises ``UserError`` for a kind of model that has no form with such a head.
    """
    if task == "CAUSAL_LM":
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    try:
        with suppress_seqcls_warning():
            model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=dtype)
    except ValueError as error:
        raise UserError(f"the model {folder} cannot be made a reward model: {str(error).splitlines()[0]}") from error
    if not hasattr(model, SCORE):
        raise UserError(f"the model {folder} cannot be made a reward model: {type(model).__name__} has another head")
    return model


def load_merged(base: Path, adapter: Path, task: Task) -> Any:
    """The model in ``base`` with what ``adapter`` learnt added to its weights, in fp32."""
    return PeftModel.from_pretrained(load_weights(base, task, torch.float32), adapter).merge_and_unload()


def kept_dtype(base: Path) -> torch.dtype:
    """The type that most weights of the model in ``base`` have in its files, or that its configuration names."""
    sizes: Counter[torch.dtype] = Counter()
    for path in base.glob("*.safetensors"):
        with path.open("rb") as file:
            header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__" and tensor["dtype"] in DTYPES:
                sizes[DTYPES[tensor["dtype"]]] += math.prod(tensor["shape"])
    if sizes:
        return sizes.most_common(1)[0][0]
    config = AutoConfig.from_pretrained(base)
    named = config.dtype or config.get_text_config().dtype or torch.float32
    return named if isinstance(named, torch.dtype) else getattr(torch, named)


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
