"""In how many processes a training runs: the setting ``launch``, and the accelerate configurations that it names.

Nothing here imports accelerate, so a mistake is found while a recipe is planned.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from agentmill.schemas.config import Config, packaged, read_yaml, validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.extras import missing
from agentmill.schemas.lora import LoraConfig

Number = Annotated[int, Field(ge=1)]
Sharding = Literal["FSDP", "DeepSpeed", "ZeRO stage 3"]
"""How processes share a model, of which each then has a part only."""

FOLDER = Path("configs/accelerate")
SUFFIXES = (".yaml", ".yml", ".json")
DEFAULT = "ddp"
"""The configuration for several processes where none is named."""

GPU_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
"""What ``CUDA_VISIBLE_DEVICES`` calls a GPU: its number, or its id."""

NO_CONTEXT_PARALLEL = (
    "context parallelism (cp_size above 1) works for supervised fine-tuning without packing, share_prefixes and"
    " validation only; take the configuration fsdp2, or leave these out"
)


class LaunchedSettings(Protocol):
    """What of the settings of a training an accelerate configuration may contradict."""

    @property
    def precision(self) -> str:
        """Of the arithmetic."""
        ...

    @property
    def weights(self) -> str:
        """The type of the weights that are trained."""
        ...

    @property
    def lora(self) -> LoraConfig | None:
        """The matrices that are trained."""
        ...

    @property
    def needs_whole_sequences(self) -> bool:
        """Whether a process needs whole sequences."""
        ...

    @property
    def tries_model(self) -> bool:
        """Whether the model is run before the training."""
        ...


class LaunchConfig(Config):
    """In how many processes a training runs, and how they divide the work."""

    processes: Annotated[
        Number | Literal["auto"],
        Field(description="Processes on all machines; `auto`: the number in `config`, else one for each visible GPU."),
    ] = "auto"
    config: Annotated[
        str | None,
        Field(description="Accelerate configuration: a shipped one (`fsdp2`) or a file; `null`: `ddp`, if several."),
    ] = None

    @field_validator("processes", mode="before")
    @classmethod
    def _is_a_number_or_auto(cls, value: object) -> object:
        # One message; pydantic has one for each branch of the union.
        if value != "auto" and not (isinstance(value, int) and value >= 1 and value is not True):
            raise ValueError(f"expected a number of at least 1, or auto, got {value!r}")
        return value

    @field_validator("config")
    @classmethod
    def _is_shipped_or_a_file(cls, value: str | None) -> str | None:
        if value is not None and not is_path(value):
            try:
                configuration_file(value)
            except UserError as error:
                # The cause carries the code through pydantic.
                raise ValueError(str(error)) from error
        return value


def is_path(config: str) -> bool:
    """Whether ``config`` is the path of a file, not the name of a shipped configuration."""
    return Path(config).suffix in SUFFIXES or "/" in config


def shipped_configurations() -> dict[str, Path]:
    """The configurations in ``configs/accelerate`` by name: those of the package, and those of the working directory
    in their place.
    """
    folders = (Path(__file__).parents[1] / FOLDER, FOLDER)
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def configuration_file(config: str) -> Path:
    """The file that ``config`` names. Raises ``UserError`` if there is none."""
    if not is_path(config):
        known = shipped_configurations()
        if config not in known:
            raise UserError(
                f"no accelerate configuration {config!r} is shipped; known: {', '.join(sorted(known))}, or a path that"
                f" ends in .yaml.{near_match(config, known)}",
                ErrorCode.UNKNOWN_NAME,
            )
        return known[config]
    file = packaged(Path(config).expanduser())
    if not file.is_file():
        raise UserError(
            f"launch.config: there is no file {config}; give an accelerate configuration (`accelerate config` writes"
            f" one) or one of {', '.join(sorted(shipped_configurations()))}",
            ErrorCode.NO_SUCH_FILE,
        )
    return file


class _Part(Config):
    """A part of an accelerate configuration: the keys that agentmill reads. Accelerate checks the others."""

    model_config = ConfigDict(extra="ignore")


class FsdpPart(_Part):
    """``fsdp_config``."""

    fsdp_version: Literal[1, 2] = 1
    fsdp_state_dict_type: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _names_are_short_or_whole(cls, given: object) -> object:
        # Accelerate takes the keys without the prefix, too.
        if not isinstance(given, dict):
            return given
        return {name if str(name).startswith("fsdp") else f"fsdp_{name}": value for name, value in given.items()}

    @model_validator(mode="after")
    def _saves_whole_models(self) -> Self:
        # Accelerate's default of version 2; with it the Trainer saves no model at the end.
        default = "FULL_STATE_DICT" if self.fsdp_version == 1 else "SHARDED_STATE_DICT"
        found = self.fsdp_state_dict_type or default
        # Accelerate takes small letters and PyTorch's number, too.
        if found.upper() not in ("FULL_STATE_DICT", "1"):
            raise ValueError(f"fsdp_state_dict_type is {found}; expected FULL_STATE_DICT, since a whole model is saved")
        return self


class DeepSpeedPart(_Part):
    """``deepspeed_config``. Of a file that it names nothing is read."""

    deepspeed_config_file: str | None = None
    zero_stage: int = 2
    zero3_save_16bit_model: bool = False

    @model_validator(mode="after")
    def _saves_whole_models(self) -> Self:
        if self.zero_stage == 3 and not self.zero3_save_16bit_model and self.deepspeed_config_file is None:
            raise ValueError("zero3_save_16bit_model is false; expected true, since a whole model is saved")
        return self


class ParallelismPart(_Part):
    """``parallelism_config``: how many processes divide a sequence (``cp``) or the layers (``tp``) between them."""

    parallelism_config_dp_replicate_size: Number = 1
    parallelism_config_dp_shard_size: Number | None = None
    parallelism_config_cp_size: Number = 1
    parallelism_config_tp_size: Number = 1
    parallelism_config_sp_size: Number = 1

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        for kind, size in (("tp", self.parallelism_config_tp_size), ("sp", self.parallelism_config_sp_size)):
            if size > 1:
                raise ValueError(
                    f"parallelism_config_{kind}_size is {size}; the trainers support data and context parallelism"
                    " (parallelism_config_cp_size) only, so leave it out"
                )
        return self

    def data_shards(self, processes: int) -> int:
        """How many groups of processes get different rows and share a model. Raises ``UserError`` if none fits."""
        replicas, context = self.parallelism_config_dp_replicate_size, self.parallelism_config_cp_size
        shards = self.parallelism_config_dp_shard_size or processes // (replicas * context)
        if replicas * shards * context != processes:
            raise UserError(
                f"parallelism_config: {processes} processes are not dp_replicate_size {replicas} x dp_shard_size"
                f" {shards} x cp_size {context}; set launch.processes to a multiple of {replicas * context}, or change"
                " the sizes",
                ErrorCode.RULE_BROKEN,
            )
        return shards


class AccelerateFile(_Part):
    """An accelerate configuration."""

    distributed_type: Literal["MULTI_GPU", "FSDP", "DEEPSPEED"]
    use_cpu: bool = False
    num_processes: Number | None = None
    num_machines: Number = 1
    gpu_ids: str | int | None = None
    mixed_precision: str | bool | None = None
    fsdp_config: FsdpPart | None = None
    deepspeed_config: DeepSpeedPart = DeepSpeedPart()
    parallelism_config: ParallelismPart | None = None

    @field_validator("distributed_type", mode="before")
    @classmethod
    def _has_several_processes(cls, value: object) -> object:
        if value == "NO":
            raise ValueError("NO is of a training in one process; leave launch.config out, or set launch.processes: 1")
        if value == "MULTI_CPU":
            raise ValueError("MULTI_CPU is not known here; write MULTI_GPU with use_cpu: true, or take ddp_cpu")
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.distributed_type == "FSDP" and self.fsdp_config is None:
            raise ValueError("fsdp_config is missing; distributed_type FSDP needs it")
        version = self.fsdp_config.fsdp_version if self.fsdp_config and self.distributed_type == "FSDP" else None
        if self.parallelism_config is not None and version != 2:
            raise ValueError("parallelism_config needs distributed_type FSDP with fsdp_version 2")
        return self

    @property
    def context_parallel(self) -> int:
        """How many processes divide a sequence between them."""
        return self.parallelism_config.parallelism_config_cp_size if self.parallelism_config else 1

    @property
    def sharding(self) -> Sharding | None:
        """How the processes share a model; ``None``: each has all of it."""
        if self.distributed_type == "DEEPSPEED":
            return "ZeRO stage 3" if self.deepspeed_config.zero_stage == 3 else "DeepSpeed"
        return "FSDP" if self.distributed_type == "FSDP" else None

    def gpus(self, visible: int) -> int:
        """The GPUs of this machine that it uses, of those that are ``visible``."""
        # PyYAML reads `0` as a number.
        return visible if self.gpu_ids in (None, "all") else min(visible, len(str(self.gpu_ids).split(",")))


@dataclass(frozen=True)
class Launch:
    """A training in ``processes`` processes by an accelerate configuration, whose name or path is ``config``."""

    config: str
    file: Path
    settings: AccelerateFile
    processes: int


def planned_launch(launch: LaunchConfig, gpus: int) -> Launch | None:
    """How a training is launched on a machine with ``gpus`` visible GPUs; ``None``: in this process alone.

    Raises ``UserError`` for a configuration that is missing or cannot be used, a package that it needs, and more
    processes than GPUs.
    """
    if launch.config is None and (launch.processes == 1 or (launch.processes == "auto" and gpus <= 1)):
        return None
    config = launch.config or DEFAULT
    found = read_configuration(config)
    if found.distributed_type == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise missing("deepspeed")
    here = found.gpus(gpus)
    processes = launch.processes
    if processes == "auto":
        processes = found.num_processes or (1 if found.use_cpu else max(here, 1) * found.num_machines)
    if not found.use_cpu and processes > here * found.num_machines:
        raise UserError(
            f"launch: {processes} process(es) by the configuration {config!r} need as many GPUs, and"
            f" {here} {'is' if here == 1 else 'are'} visible here; lower launch.processes, or"
            " take a configuration for the CPU (ddp_cpu, fsdp_cpu)",
            ErrorCode.GPUS_TOO_FEW,
        )
    if processes % found.num_machines:
        raise UserError(
            f"launch: {processes} process(es) cannot be divided equally among the num_machines {found.num_machines} of"
            f" the configuration {config!r}; set launch.processes to a multiple",
            ErrorCode.RULE_BROKEN,
        )
    if found.parallelism_config is not None:
        found.parallelism_config.data_shards(processes)
    return Launch(config, configuration_file(config), found, processes)


def read_configuration(config: str) -> AccelerateFile:
    """The accelerate configuration that is named. Raises ``UserError`` for one that cannot be used."""
    file = configuration_file(config)
    return validate(AccelerateFile, read_yaml(file), str(file))


def check_configuration(config: str, trainer: str, settings: LaunchedSettings) -> None:
    """Raises ``UserError`` where the configuration cannot be used, or contradicts other settings of the training."""
    found = read_configuration(config)
    mixed = found.mixed_precision
    # Accelerate reads `no` without quotes as false. By `auto` the trainer computes in bf16 on GPUs that have it.
    if mixed not in (None, False, "no") and not (mixed == "bf16" and settings.precision != "fp32"):
        raise UserError(
            f"launch.config {config!r} has mixed_precision {mixed!r}, and the training precision:"
            f" {settings.precision}; the latter decides, so set mixed_precision: 'no' there",
            ErrorCode.RULE_BROKEN,
        )
    if found.context_parallel > 1 and (trainer != "sft" or settings.needs_whole_sequences):
        raise UserError(f"launch.config {config!r}: {NO_CONTEXT_PARALLEL}", ErrorCode.RULE_BROKEN)
    check_sharding(found.sharding, settings)


def check_sharding(sharding: Sharding | None, settings: LaunchedSettings) -> None:
    """Raises ``UserError`` for settings that have no effect, or cannot work, where processes share a model."""
    if sharding is None:
        return
    if settings.weights == "bf16":
        raise UserError(
            f"weights: bf16 has no effect under {sharding}, which keeps trained weights in fp32; leave it out, or use"
            " more processes",
            ErrorCode.KEY_NOT_FOR_THIS,
        )
    if settings.lora and settings.lora.quantize:
        raise UserError(
            f"lora.quantize does not go with {sharding} here; leave one of them out, or let each process hold the"
            " model (distributed_type: MULTI_GPU)",
            ErrorCode.KEY_NOT_FOR_THIS,
        )
    if sharding == "ZeRO stage 3" and settings.tries_model:
        raise UserError(
            "packing and share_prefixes are tried on the model before the training, and of ZeRO stage 3 a process has a"
            " part of it only; leave them out, or take fsdp2 or zero2",
            ErrorCode.KEY_NOT_FOR_THIS,
        )


def visible_gpus() -> list[str]:
    """The GPUs that a process started now could use, by the names that ``CUDA_VISIBLE_DEVICES`` takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        # CUDA ends at the first name that is none, such as -1, which hides all after it.
        return list(itertools.takewhile(GPU_NAME.fullmatch, map(str.strip, chosen.split(","))))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU")]
