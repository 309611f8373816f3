"""The model folder that training starts from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import BUNDLED
from agentmill.schemas.records.record import JsonObject
from agentmill.trainers.bundled import bundled_model
from agentmill.trainers.loading import load_errors

PREFIX = "bundled:"


def model_folder(model: str, scores: bool = False) -> Path:
    """The folder that ``model`` names: ``bundled:NAME`` or a path.

    Raises ``UserError`` where it holds no model, or a reward model where none is asked for (``scores``).
    """
    if model.startswith(PREFIX):
        return bundled_model(model.removeprefix(PREFIX))
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        if not scores and is_reward_model(folder):
            raise UserError(
                f"{model} holds a reward model, which scores text and cannot go on with it",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )
        return folder
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{model} holds a LoRA adapter, no model; make it one to start from it:"
            f" agentmill merge {model} --out {model.rstrip('/')}-merged",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    wrong = "holds no config.json" if folder.is_dir() else "does not exist"
    hint = f" Did you mean {PREFIX}{model}?" if model in BUNDLED else ""
    raise UserError(
        f"the model folder {model} {wrong}; expected a transformers model folder or {PREFIX}NAME.{hint}",
        ErrorCode.MODEL_MISSING,
    )


def is_reward_model(folder: Path) -> bool:
    """Whether the model in ``folder`` says one number of a text, in the place of what comes next."""
    with load_errors(folder):
        config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
        return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ())
