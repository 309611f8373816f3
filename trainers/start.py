"""What comes before the rows of a training are read: is it done already, may it go on, can the tokenizer serve it."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import require
from agentmill.schemas.models import context_length, model_revision
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table
from agentmill.schemas.templates.process import check_size
from agentmill.schemas.training import TRAINING_TEMPLATE, template_identity, template_text
from agentmill.trainers.command import say
from agentmill.trainers.loading import load_errors
from agentmill.trainers.rows import Made, TrainingRows, load_rows
from agentmill.trainers.settings import TrainSettings
from agentmill.trainers.template import training_template
from agentmill.trainers.workspace import Workspace

E = TypeVar("E")

NOT_IDENTITY = {
    *("rows", "model", "reference", "output", "recipe"),
    *("max_dropped", "save_steps", "resume", "log_steps", "tensorboard", "trust_remote_code"),
}
"""Settings that do not change what comes out; rows and models count by what is in them."""


@dataclass(frozen=True)
class Start:
    """Where a training begins; ``max_length`` is that of the settings or the model's own, in tokens."""

    table: Table
    base: Path
    workspace: Workspace
    tokenizer: Any
    max_length: int


def begin(trainer: str, settings: TrainSettings, table: Table, base: Path, **revisions: str) -> Start | None:
    """The start of a training, ``None`` if its model is there already; ``revisions`` of other models than ``base``.

    Raises ``UserError`` where the output or the checkpoints are those of another training, or the tokenizer of
    ``base`` cannot serve.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    keep_to_one_gpu(os.environ)
    if settings.tensorboard:
        require("tensorboard")
    if settings.trl:
        from agentmill.trainers.trl_config import check_trl_fields

        check_trl_fields(trainer, settings.trl)

    # Trainings from before there was `trl` have no entry for it, and stay the same training without it.
    left_out = NOT_IDENTITY if settings.trl else NOT_IDENTITY | {"trl"}
    identity: JsonObject = {
        "trainer": trainer,
        "settings": settings.model_dump(exclude=left_out)
        | {"chat_template": template_identity(settings.chat_template)},
        "rows_digest": table.digest,
        "base_revision": model_revision(base),
        **revisions,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }
    workspace = Workspace(Path(settings.output).expanduser().absolute(), identity)
    if workspace.finished():
        say(f"{settings.output} is there already, from the same rows and settings: nothing to do")
        return None
    if settings.resume:
        workspace.check()
    with load_errors(base):
        max_length = min(settings.max_length, context_length(base) or settings.max_length)
    tokenizer = load_tokenizer(base, settings.chat_template, settings.trust_remote_code)
    return Start(table, base, workspace, tokenizer, max_length)


def keep_to_one_gpu(environment: MutableMapping[str, str]) -> None:
    """Let a process that no launcher started see the first of its GPUs alone: TRL refuses to begin on several.

    It has to come before anything asks PyTorch for its devices.
    """
    if "WORLD_SIZE" not in environment:
        environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def load_tokenizer(base: Path, template: str | None = None, trusted: bool = False) -> Any:
    """The model's tokenizer, with the chat template that ``template`` names (``TrainSettings.chat_template``).

    ``trusted``: code of the model's own may run. Raises ``UserError`` if it cannot be loaded, cannot render a
    conversation or cannot place its tokens in it.
    """
    from transformers import AutoTokenizer

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
    check_size(str(tokenizer.chat_template))
    if template == TRAINING_TEMPLATE:
        tokenizer.chat_template = training_template(tokenizer)
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer in {base} does not tell where its tokens stand; convert it to tokenizer.json",
            ErrorCode.TOKENIZER_UNFIT,
        )
    return tokenizer


def read_rows(
    start: Start, settings: TrainSettings, make: Callable[[Any], Made[E]], masked: bool = True
) -> TrainingRows[E]:
    """``load_rows`` with what the settings say of rows."""
    return load_rows(
        start.table,
        make,
        start.tokenizer,
        settings.seed,
        masked=masked,
        max_dropped=settings.max_dropped,
        control_tokens=settings.control_tokens,
    )


def tell(rows: TrainingRows[Any], examples: str) -> None:
    """Say what is trained on, ``examples`` of what kind, and that the mask is right."""
    counts = rows.counts
    reasons = ", ".join(f"{number} {reason}" for reason, number in rows.reasons.items())
    say(
        f"rows: read {counts.read} = used {counts.used} + dropped {counts.dropped}{reasons and f' ({reasons})'};"
        f" {counts.written} {examples}, longest {rows.longest} tokens"
    )
    say(f"tokens: {rows.tokens_from['stored']} conversations as sampled, {rows.tokens_from['text']} from their text")
    if rows.lost_tokens:
        say(f"{rows.lost_tokens} tokens that should carry loss are in turns or rows too long for max_length: left out")
    if rows.control_rows:
        say(
            f"messages of {rows.control_rows} rows spell control tokens: they are text, in stored tokens as they were"
            " sampled; control_tokens=drop drops such rows"
        )
    if rows.cut_contexts:
        say(f"{rows.cut_contexts} sequences begin within a message, since with all of it their turn would not fit")
    if not rows.texts:
        return
    told = ", ".join(f"{role} {count['loss']:,} of {count['tokens']:,}" for role, count in rows.roles.items())
    say(f"mask self-test passed, tokens with loss: {told}; decoded and compared: {len(rows.texts)} messages")
    say(f"for example {rows.texts[0]!r}")
