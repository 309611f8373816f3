"""Supervised fine-tuning with TRL: ``python -m trainers.sft --config FILE [key=value …]``.

Reads a table of ``SftRow`` and writes a model folder, alone or under ``accelerate launch -m trainers.sft …``. What can
be set stands in ``trainers.settings``. The same command goes on from the last checkpoint after a stop, and does nothing
once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.config import override, read_yaml, validate
from schemas.errors import UserError
from schemas.model import context_length, model_revision
from schemas.record import JsonObject
from schemas.tables import Table
from trainers.models import model_folder
from trainers.rows import TrainingRows, load_rows, open_rows
from trainers.settings import SftSettings
from trainers.workspace import Workspace, space_errors

NOT_IDENTITY = {"rows", "model", "output", "recipe", "save_steps", "resume", "log_steps"}
"""Settings that do not change what comes out; rows and model count by what is in them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainers.sft", description="Supervised fine-tuning with TRL.")
    parser.add_argument("--config", required=True, help="YAML file with the settings (see trainers/settings.py)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that go before those of the file")
    arguments = parser.parse_args(argv)
    try:
        settings = validate(SftSettings, override(read_yaml(arguments.config), arguments.overrides), arguments.config)
        train(settings)
    except UserError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from the last checkpoint")
        return 130
    return 0


def train(settings: SftSettings) -> None:
    """Make the model folder ``settings.output``. Raises ``UserError`` before any time is spent, where it can."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    table = open_rows(settings.rows)
    base = model_folder(settings.model)
    workspace = Workspace(Path(settings.output).expanduser().absolute(), identity(settings, table, base))
    if workspace.finished():
        say(f"{settings.output} is there already, from the same rows and settings: nothing to do")
        return
    if settings.resume:
        workspace.check()

    tokenizer = load_tokenizer(base)
    max_length = min(settings.max_length, context_length(base) or settings.max_length)
    rows = load_rows(table, tokenizer, settings, max_length)
    tell(rows)

    from trainers.fit import Job, fit

    with space_errors(workspace.folder):
        fit(settings, Job(rows, table, base, workspace.identity["base_revision"], tokenizer, workspace))
    say(f"the model is in {settings.output}")


def identity(settings: SftSettings, table: Table, base: Path) -> JsonObject:
    """All that decides what comes out of a training."""
    return {
        "trainer": "sft",
        "settings": settings.model_dump(exclude=NOT_IDENTITY),
        "rows_digest": table.digest,
        "base_revision": model_revision(base),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def load_tokenizer(base: Path) -> Any:
    """The model's tokenizer. Raises ``UserError`` if it cannot render a conversation or place its tokens in it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {base} has no chat template; save one in it as `chat_template.jinja`,"
            " or start from an instruct model"
        )
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer in {base} does not tell where its tokens stand; convert it to tokenizer.json")
    return tokenizer


def tell(rows: TrainingRows) -> None:
    """Say what is trained on, and that the mask is right."""
    counts = rows.counts
    reasons = ", ".join(f"{number} {reason}" for reason, number in rows.reasons.items())
    say(
        f"rows: read {counts.read} = used {counts.used} + dropped {counts.dropped}{reasons and f' ({reasons})'};"
        f" {counts.written} sequences, longest {max(map(len, rows.sequences))} tokens"
    )
    if rows.lost_tokens:
        say(f"{rows.lost_tokens} tokens that should carry loss are in turns too long for max_length, and left out")
    told = ", ".join(f"{role} {count['loss']:,} of {count['tokens']:,}" for role, count in rows.roles.items())
    say(f"mask self-test passed, tokens with loss: {told}; decoded and compared: {len(rows.texts)} messages")
    say(f"for example {rows.texts[0]!r}")


def say(text: str) -> None:
    """Print ``text`` to stderr, once for all processes."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
