"""TRL's own DPO or KTO trainer on what one of our trainings was made of: ``trl_preferences.py KIND CONFIG OUTPUT``.

CONFIG is the configuration of our training. Rows, their order, seed, precision and every setting are the same, so each
step sees the same texts; what differs is where the loss is, and that ours takes the tokens that were sampled where rows
keep them. OUTPUT is a model folder, with the tokens with loss by role of both over all steps in ``loss_by_role.json``;
it appears when it is complete.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from bench_masks import batch_loss
from datasets import Dataset
from trl import DPOTrainer, KTOTrainer

from agentmill.schemas.chat import to_template
from agentmill.schemas.config import read_yaml, validate
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message, PreferenceRow, UnpairedRow
from agentmill.schemas.tables import Table
from agentmill.schemas.training import TrainConfig
from agentmill.trainers.adapters import ModelFiles
from agentmill.trainers.batching import row_order
from agentmill.trainers.command import DpoSettings, KtoSettings
from agentmill.trainers.data import EncodedRow, TrainingRows, read_rows
from agentmill.trainers.dpo import dpo_method
from agentmill.trainers.kto import UnpairedCollator, kto_method
from agentmill.trainers.mask_test import count_by_role
from agentmill.trainers.model_io import load_model, load_tokenizer, model_folder
from agentmill.trainers.preference_data import Labelled, Pair, encode_labelled, encode_pair
from agentmill.trainers.requirements import choose_precision
from agentmill.trainers.run_dir import TrainingSetup, WorkFolder
from agentmill.trainers.trl_trainer import Method, trl_arguments

Row = PreferenceRow | UnpairedRow
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "dpo": (DPOTrainer, DpoSettings, encode_pair),
    "kto": (KTOTrainer, KtoSettings, encode_labelled),
}


def plain(row: Row) -> JsonObject:
    """The row as TRL documents it."""
    sides = ("prompt", "chosen", "rejected") if isinstance(row, PreferenceRow) else ("prompt", "completion")
    label = {} if isinstance(row, PreferenceRow) else {"label": row.label}
    return {**{side: to_template(getattr(row, side)) for side in sides}, **label, "tools": row.tools}


def conversations(rows: list[Row]) -> list[list[Message]]:
    """The sequences of a batch of ``rows``, as TRL orders them."""
    if isinstance(rows[0], UnpairedRow):
        return [[*row.prompt, *row.completion] for row in rows]
    return [[*row.prompt, *getattr(row, side)] for side in ("chosen", "rejected") for row in rows]


def method_of(settings: Any, rows: TrainingRows, start: TrainingSetup) -> Method:
    """What our trainer would be made with."""
    if isinstance(settings, DpoSettings):
        return dpo_method(settings, rows, ModelFiles(start.base), start.tokenizer.pad_token_id or 0)
    collator = UnpairedCollator(start.tokenizer.pad_token_id or 0, start.max_length)
    return kto_method(settings, rows, ModelFiles(start.base), collator)


def main(kind: str, config: Path, output: Path) -> None:
    """Train and save."""
    trainer_type, settings_type, encode = KINDS[kind]
    work = output.with_name(f".{output.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    settings = validate(settings_type, read_yaml(config) | {"save_steps": None}, str(config))
    base = model_folder(settings.model)
    start = TrainingSetup(
        Table.open(settings.rows), base, WorkFolder(work, {}), load_tokenizer(base), settings.max_length
    )
    used: list[Row] = []

    def make(row: Row) -> EncodedRow[Any]:
        made: EncodedRow[Any] = encode(row, start.tokenizer, start.max_length)
        used.append(row)
        return made

    rows = read_rows(start, settings, make, Pair if kind == "dpo" else Labelled)
    method, precision = method_of(settings, rows, start), choose_precision(settings.precision)
    arguments = trl_arguments(settings, start, method, precision)
    order = row_order(method.lengths, settings.batch_size, arguments.max_steps * settings.batch_size, settings.seed)
    met = [used[number] for number in order]
    trainer = trainer_type(
        model=load_model(base, TrainConfig(), precision),
        ref_model=load_model(base, TrainConfig(), precision),
        args=arguments,
        train_dataset=Dataset.from_list([plain(row) for row in met], on_mixed_types="use_json"),
        processing_class=start.tokenizer,
    )
    trainer.train()

    tools = json.loads(met[0].tools) if met[0].tools else None
    whole = [encode(row, start.tokenizer, start.max_length).sequences for row in met]
    ours = {role: count["loss"] for role, count in count_by_role([each for one in whole for each in one]).items()}
    trainer.model.to(torch.bfloat16).save_pretrained(work)
    start.tokenizer.save_pretrained(work)
    counts = {"TRL": batch_loss(trainer, conversations(met), tools, start.tokenizer), "ours": ours}
    (work / "loss_by_role.json").write_text(json.dumps(counts))
    work.rename(output)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
