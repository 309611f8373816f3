"""From what TRL saved to a complete model folder: weights, tokenizer, chat template, ``training.json``, model card."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from agentmill.schemas.records.manifest import Manifest
from agentmill.trainers.card import TrainingRecord, model_card
from agentmill.trainers.settings import TrainSettings
from agentmill.trainers.start import Start
from agentmill.trainers.weights import Task, load_merged, load_weights, save_adapter, save_whole
from agentmill.trainers.workspace import RECORD


def write_model(start: Start, settings: TrainSettings, task: Task) -> None:
    """Make ``workspace.model`` from ``workspace.raw``: the adapter, or all weights as ``save_dtype`` says."""
    raw, folder = start.workspace.raw, start.workspace.model
    if settings.lora is None:
        model = load_weights(raw, task, torch.float32, settings.trust_remote_code)
        save_whole(model, start.tokenizer, start.base, folder, settings.save_dtype)
    elif settings.lora.merge:
        merged = load_merged(start.base, raw, task, settings.trust_remote_code)
        save_whole(merged, start.tokenizer, start.base, folder, settings.save_dtype)
    else:
        save_adapter(raw, start.tokenizer, folder)


def write_record(folder: Path, record: TrainingRecord, manifest: Manifest) -> None:
    """Add ``training.json`` and ``README.md``."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    (folder / "README.md").write_text(model_card(record, manifest), encoding="utf-8")
