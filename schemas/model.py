"""Model folders as transformers writes them: what can be told of one without loading it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from schemas.ids import digest, file_sha256
from schemas.record import JsonObject

TRAINING_RECORD = "training.json"
"""In the folder of a model that we tuned: how it was trained, with the time that it took."""


def model_revision(folder: Path) -> str:
    """Digest of the files that make a model what it is: weights, configuration, tokenizer.

    Two trainings that end with the same model, of which one was interrupted, give the same revision.
    """
    kinds = (".safetensors", ".json", ".jinja", ".model")
    files = sorted(path for path in folder.iterdir() if path.suffix in kinds and path.name != TRAINING_RECORD)
    return digest("model", [[path.name, file_sha256(path)] for path in files])[:16]


def context_length(folder: Path) -> int | None:
    """The longest sequence that the model was made for, in tokens, if its configuration says."""
    config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
    value = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
    return value if isinstance(value, int) else None
