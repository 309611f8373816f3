"""Models as training loads and writes them: language models, and models that score whole conversations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.trainer.reward_trainer import suppress_seqcls_warning

from schemas.errors import UserError

Task = Literal["CAUSAL_LM", "SEQ_CLS"]
"""What a model is for, in PEFT's words: to go on with text, or to give one number for all of it."""

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


def save_whole(model: Any, tokenizer: Any, base: Path, folder: Path) -> None:
    """Write ``model`` and its tokenizer to ``folder``, the weights in the type that those of ``base`` are kept in."""
    if hasattr(model, SCORE):
        # By it the model finds the last token of what it scores.
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    kept = msgspec.json.decode((base / "config.json").read_bytes()).get("dtype") or "float32"
    model.to(getattr(torch, kept)).save_pretrained(folder)
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
