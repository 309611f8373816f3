"""Samples of the model at each validation: greedy continuations of prompts of rows that are not trained on."""

# ruff: noqa: ARG002 (the arguments of a callback have the names that transformers gives them)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import TrainerCallback

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.monitoring import SampleConfig
from agentmill.schemas.records.manifest import write_atomically
from agentmill.trainers.chat_template import end_tokens
from agentmill.trainers.command import say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.token_shards import ROW_IDS

SHOWN = 200
"""Characters of the one continuation that is printed."""

COLUMNS = (("input_ids", "mask"), ("chosen_ids", "chosen_mask"), ("ids", "mask"))
"""Where examples of the trainers have their tokens and which of them carry loss; of pairs the chosen side."""


@dataclass(frozen=True)
class Prompt:
    """The tokens of a row before the first with loss, which are what the model gets at inference."""

    row_id: str
    ids: Sequence[int]


class Sample(msgspec.Struct, frozen=True):
    """A line of ``OUTPUT.samples.jsonl``; ``ended``: the model ended its turn within ``max_tokens``."""

    step: int
    row_id: str
    prompt: str
    continuation: str
    ended: bool


def validation_prompts(rows: TrainingRows, number: int, longest: int | None = None) -> list[Prompt]:
    """Prompts of the first ``number`` rows to validate on, each once.

    An example that begins with loss has none, and prompts of more than ``longest`` tokens are passed over.
    """
    found: dict[str, Prompt] = {}
    for example in rows.examples:
        tokens, mask = next(names for names in COLUMNS if names[0] in example)
        first = example[mask].index(True)
        if first and (longest is None or first <= longest) and len(found) < number:
            row_id = example[ROW_IDS][0]
            found.setdefault(row_id, Prompt(row_id, example[tokens][:first]))
        if len(found) == number:
            break
    return list(found.values())


class SampleGenerations(TrainerCallback):
    """Has the model continue ``prompts`` after each validation, writes it to ``path`` and prints one.

    A resumed training keeps the lines of the steps up to its checkpoint.
    """

    def __init__(self, config: SampleConfig, prompts: Sequence[Prompt], tokenizer: Any, path: Path) -> None:
        self._max_tokens = config.max_tokens
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the steps that are made again."""
        if state.is_world_process_zero and self._path.exists():
            lines = self._path.read_bytes().splitlines(keepends=True)
            # The last line may be torn; its step is made again.
            whole = [line for line in lines if line.endswith(b"\n")]
            kept = [line for line in whole if self._step_of(line) <= state.global_step]
            write_atomically(self._path, b"".join(kept), self._path.parent)

    def _step_of(self, line: bytes) -> int:
        try:
            return msgspec.json.decode(line, type=Sample).step
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UserError(
                f"{self._path} has a line that is no sample of a training ({error})\n"
                "move the file to another place, or choose another `output`",
                ErrorCode.OUTPUT_NOT_OURS,
            ) from error

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Continue the prompts. All processes do, since they may share the model."""
        samples = [self._continue(kwargs["model"], prompt, state.global_step) for prompt in self._prompts]
        if state.is_world_process_zero and samples:
            with self._path.open("ab") as file:
                file.writelines(msgspec.json.encode(sample) + b"\n" for sample in samples)
            shown = samples[state.global_step % len(samples)]
            say(f"sample at step {shown.step}, row {shown.row_id}: {shown.continuation[:SHOWN]!r}")

    def _continue(self, model: Any, prompt: Prompt, step: int) -> Sample:
        ids = torch.tensor([list(prompt.ids)], device=model.device)
        with torch.no_grad():
            whole = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self._max_tokens,
                do_sample=False,
                pad_token_id=self._tokenizer.pad_token_id or 0,
            )
        made = whole[0, ids.shape[1] :].tolist()
        text = self._tokenizer.decode(made, skip_special_tokens=True)
        ended = len(made) < self._max_tokens or made[-1] in end_tokens(model)
        return Sample(step, prompt.row_id, self._tokenizer.decode(prompt.ids), text, ended)
