"""From what TRL saved to a complete model folder: weights, tokenizer, chat template, ``training.json``, model card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from schemas.manifest import Manifest
from trainers.card import TrainingRecord, model_card
from trainers.settings import LoraSettings
from trainers.workspace import RECORD, Workspace


def write_model(workspace: Workspace, base: Path, lora: LoraSettings | None, tokenizer: Any) -> None:
    """Make ``workspace.model`` from ``workspace.raw``: all weights, in the base model's type, or the adapter."""
    if lora is not None and not lora.merge:
        workspace.model.mkdir()
        for path in workspace.raw.glob("adapter_*"):
            shutil.copy2(path, workspace.model)
    else:
        kept = json.loads((base / "config.json").read_bytes()).get("dtype") or "float32"
        if lora is None:
            model = AutoModelForCausalLM.from_pretrained(workspace.raw, dtype=torch.float32)
        else:
            whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            model = PeftModel.from_pretrained(whole, workspace.raw).merge_and_unload()
        model.to(getattr(torch, kept)).save_pretrained(workspace.model)
    tokenizer.save_pretrained(workspace.model)
    for path in workspace.model.iterdir():
        path.chmod(0o644)


def write_record(folder: Path, record: TrainingRecord, manifest: Manifest) -> None:
    """Add ``training.json`` and ``README.md``."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    (folder / "README.md").write_text(model_card(record, manifest), encoding="utf-8")
