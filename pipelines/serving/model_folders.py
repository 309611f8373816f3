"""Where models lie: folders, bundled models and models on the Hub, fetched on their first use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match, parse_labelled, printable
from agentmill.schemas.extras import require
from agentmill.schemas.model_hub import cached_model, fetch_model, hub_model
from agentmill.schemas.models import BUNDLED as BUNDLED_MODELS
from agentmill.schemas.models import PICKLED, TRAINING_RECORD, is_adapter, read_json, weight_files

BUNDLED = "bundled:"
WEIGHTS = (".safetensors", *PICKLED)
TOKENIZERS = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json"}


def model_path(model: str) -> Path:
    """Where a model or an adapter that is not bundled lies, or should. Nothing is downloaded."""
    hub = hub_model(model)
    found = None if hub is None else cached_model(hub)
    return found or Path(model).expanduser().resolve()


def check_base_of(adapter: str, base: str, revision: Callable[[], str]) -> None:
    """Raises ``UserError`` for an adapter whose record says that it was trained on another model than ``base``.

    ``revision`` gives that of ``base``. It is asked for only where the adapter's is known.
    """
    wanted = read_json(model_path(adapter) / TRAINING_RECORD).get("base_revision")
    if wanted is not None and wanted != (found := revision()):
        raise UserError(
            f"the adapter {adapter} was trained on a model of the revision {wanted}, and {base} has {found}\n"
            "name the model that it was trained on as `model`, or an adapter of this one",
            ErrorCode.BASE_MODEL_DIFFERS,
        )


def check_model(model: str) -> None:
    """See that ``model`` names a bundled model, or a folder with a whole one; nothing is fetched or loaded.

    Raises ``UserError``.
    """
    if model.startswith(BUNDLED):
        name = model.removeprefix(BUNDLED)
        if name not in BUNDLED_MODELS:
            known = ", ".join(f"{BUNDLED}{each}" for each in sorted(BUNDLED_MODELS))
            raise UserError(
                f"there is no bundled model {name!r}; known: {known}.{near_match(name, BUNDLED_MODELS)}",
                ErrorCode.UNKNOWN_NAME,
            )
        return
    folder = model_folder(model)
    held = {path.name for path in folder.iterdir()}
    if not weight_files(folder):
        converted = any(name.endswith(".gguf") for name in held)
        hint = "\nGGUF files are not loaded: name the model that they were made from" if converted else ""
        raise UserError(
            f"the model folder {model} holds no weights; expected {' or '.join(WEIGHTS)} files in it{hint}",
            ErrorCode.MODEL_INCOMPLETE,
        )
    if not held & TOKENIZERS:
        raise UserError(
            f"the model folder {model} holds no tokenizer; expected {' or '.join(sorted(TOKENIZERS))} in it",
            ErrorCode.MODEL_INCOMPLETE,
        )


def log_line(line: str) -> None:
    """Tell the user of a download."""
    print(printable(line), file=sys.stderr, flush=True)


def model_folder(model: str) -> Path:
    """The folder that ``model`` names; a bundled model, or one on the Hub, is fetched on its first use.

    Raises ``UserError`` where there is no model.
    """
    if model.startswith(BUNDLED):
        require("train")
        # In a process of its own: the conversion takes torch, which this package does not import.
        command = [sys.executable, "-m", "agentmill.trainers.bundled", model.removeprefix(BUNDLED)]
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise parse_labelled(done.stderr.strip() or f"exit code {done.returncode}", ErrorCode.DOWNLOAD_FAILED)
        return Path(done.stdout.strip().splitlines()[-1])
    hub = hub_model(model)
    folder = model_path(model) if hub is None else fetch_model(hub, log_line)
    if is_adapter(folder):
        raise UserError(
            f"{model} holds an adapter; name its model, and the adapter as well:"
            f" {{model: …, adapter: NAME, server: {{lora: {{NAME: {model}}}}}}}",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    if not (folder / "config.json").is_file():
        wrong = "holds no config.json" if folder.is_dir() else "does not exist"
        raise UserError(
            f"the model folder {model} {wrong}; expected a transformers model folder, {BUNDLED}NAME or"
            " ORG/NAME[@REVISION] on the Hub.",
            ErrorCode.MODEL_MISSING,
        )
    return folder
