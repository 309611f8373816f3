"""Model folders as transformers writes them: what can be told of one without loading it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from schemas.ids import digest
from schemas.record import JsonObject


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
