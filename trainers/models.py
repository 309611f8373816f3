"""The model folder that training starts from."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import UserError
from trainers.bundled import BUNDLED, bundled_model

PREFIX = "bundled:"


def model_folder(model: str) -> Path:
    """The folder that ``model`` names: ``bundled:NAME`` or a path. Raises ``UserError`` where it holds no model."""
    if model.startswith(PREFIX):
        return bundled_model(model.removeprefix(PREFIX))
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{model} holds a LoRA adapter, no model; train it with `lora: {{merge: true}}` to start from it"
        )
    wrong = "holds no config.json" if folder.is_dir() else "does not exist"
    hint = f" Did you mean {PREFIX}{model}?" if model in BUNDLED else ""
    raise UserError(f"the model folder {model} {wrong}; expected a transformers model folder or {PREFIX}NAME.{hint}")
