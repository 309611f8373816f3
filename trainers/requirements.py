"""What the settings of a training need of this machine: names that TRL knows, packages, and a GPU.

``python -m agentmill.trainers.requirements TRAINER SETTINGS`` checks a JSON object. Exit codes: 0 met, 2 not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from agentmill.trainers import command
from agentmill.trainers.command import exit_code_of, prepare_environment, say

if __name__ == "__main__":
    prepare_environment()

import msgspec
import torch
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import require
from agentmill.schemas.launch import GPU_NAME, check_sharding
from agentmill.schemas.models import read_json
from agentmill.schemas.training import BITSANDBYTES_OPTIMIZERS, TrainConfig
from agentmill.trainers.launch import sharing_of_model
from agentmill.trainers.trl_config import check_trl_fields

FLASH: Mapping[str, tuple[Callable[[], bool], str]] = {
    "flash_attention_2": (is_flash_attn_2_available, "pip install flash-attn --no-build-isolation"),
    "flash_attention_3": (
        is_flash_attn_3_available,
        "build the folder `hopper` of https://github.com/Dao-AILab/flash-attention (H100 or newer)",
    ),
}
"""Attention of packages that no extra installs, since they are built against the installed torch: whether the package
is there, and how to install it."""


def main(argv: Sequence[str]) -> int:
    """Check the settings in ``argv`` and return the exit code. So a recipe asks for it before its first step."""
    trainer, given = argv
    settings = TrainConfig.model_validate(msgspec.json.decode(given))
    return exit_code_of(lambda: check_requirements(trainer, settings), "interrupted")


def check_requirements(trainer: str, settings: TrainConfig) -> None:
    """Raises ``UserError`` for what cannot be trained on this machine as ``settings`` ask for it.

    The names of the optimizer and in ``trl`` are checked too, since only the installed TRL knows them.
    """
    check_trl_fields(trainer, {"optim": settings.optimizer, **settings.trl})
    if settings.optimizer in BITSANDBYTES_OPTIMIZERS or (settings.lora and settings.lora.quantize):
        require("bitsandbytes")
    if settings.liger:
        require("liger")
    available, install = FLASH.get(settings.attention, (lambda: True, ""))
    # Asked here: transformers would download a kernel in the place of a package that is missing.
    if not available():
        raise UserError(
            f"attention: the package of {settings.attention} is not installed\n"
            f"install it ({install}), or take sdpa, which needs no package",
            ErrorCode.EXTRA_MISSING,
        )
    if not torch.cuda.is_available():
        for setting, instead in _for_gpus(settings):
            raise UserError(
                f"{setting} needs a GPU, and PyTorch sees none here; {instead}",
                ErrorCode.GPU_MISSING,
            )
        if GPU_NAME.match(command.GIVEN_GPUS or ""):
            say(
                f"warning: {command.GPUS}={command.GIVEN_GPUS} names GPUs, and PyTorch sees none; this trains on the"
                " CPU (`nvidia-smi -L` lists the GPUs; an empty value goes without any)"
            )
    if settings.attention in FLASH and precision_of(settings) != "bf16":
        raise UserError(
            f"attention: {settings.attention} computes in bf16, which this GPU does not have; take sdpa",
            ErrorCode.KEY_NOT_FOR_THIS,
        )
    check_sharding(sharing_of_model(), settings)


def _for_gpus(settings: TrainConfig) -> Iterator[tuple[str, str]]:
    """The settings that only a GPU can follow, and what to do without one."""
    if settings.attention in FLASH or settings.attention == "flex_attention":
        # PyTorch has flex attention for the CPU, but without gradients.
        yield f"attention: {settings.attention}", "take sdpa or eager"
    if settings.liger:
        yield "liger: true", "leave it out"
    if settings.trl.get("activation_offloading"):
        yield "trl: {activation_offloading: true}", "leave it out"
    if settings.optimizer.startswith("paged_"):
        # bitsandbytes would only warn, and not page.
        yield f"optimizer: {settings.optimizer}", f"take {settings.optimizer.removeprefix('paged_')}"


def check_whole_weights(base: Path, settings: TrainConfig) -> None:
    """Raises ``UserError`` for a model of quantized weights that a training would have to write as whole ones."""
    file = base / "config.json"
    found = read_json(file).get("quantization_config") if file.is_file() else None
    if isinstance(found, dict) and found and not (settings.lora and not settings.lora.merge):
        raise UserError(
            f"the weights of {base} are quantized ({found.get('quant_method', 'method unknown')}), and no whole model"
            " can be made of them\nset lora.merge: false, which writes an adapter, or start from the model that was"
            " quantized (lora.quantize loads it in 4 bits)",
            ErrorCode.KEY_NOT_FOR_THIS,
        )


def precision_of(settings: TrainConfig) -> str:
    """``bf16`` or ``fp32``: what ``settings`` compute in on this machine."""
    # Weights in bf16 are computed with in bf16, whatever is faster.
    return "bf16" if settings.weights == "bf16" else choose_precision(settings.precision)


def choose_precision(wanted: str) -> str:
    """``bf16`` or ``fp32``: as wanted, or what the processor is made for (emulated bf16 is four times slower)."""
    if wanted != "auto":
        return wanted
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    has = torch.cpu.get_capabilities()
    return "bf16" if has.get("avx512_bf16") or has.get("amx_bf16") else "fp32"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
