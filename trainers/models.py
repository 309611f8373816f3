"""The model folder that training starts from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from schemas.errors import UserError
from schemas.ids import digest
from schemas.record import JsonObject
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


def model_revision(folder: Path) -> str:
    """Digest of the files that make a model what it is: weights, configuration, tokenizer."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".jinja", ".model"))
    parts = []
    for path in files:
        with path.open("rb") as handle:
            parts.append([path.name, hashlib.file_digest(handle, "sha256").hexdigest()])
    return digest("model", parts)[:16]


def context_length(folder: Path) -> int | None:
    """The longest sequence that the model was made for, in tokens, if its configuration says."""
    config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
    value = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
    return value if isinstance(value, int) else None
