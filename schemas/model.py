"""Model folders as transformers writes them: what can be told of one without loading it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from schemas.ids import digest, file_sha256
from schemas.record import JsonObject


def model_revision(folder: Path) -> str:
    """Digest of the files that make a model what it is: weights, configuration, tokenizer."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".jinja", ".model"))
    return digest("model", [[path.name, file_sha256(path)] for path in files])[:16]


def context_length(folder: Path) -> int | None:
    """The longest sequence that the model was made for, in tokens, if its configuration says."""
    config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
    value = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
    return value if isinstance(value, int) else None
