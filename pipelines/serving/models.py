"""Models as a recipe declares them: who acts, how it samples, and where it is served."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.model_folders import BUNDLED, model_path
from agentmill.pipelines.serving.server_config import SamplingConfig, ServerConfig
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.model_hub import hub_model, pinned_model
from agentmill.schemas.models import is_reward_model, model_revision
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.policies import POLICIES
from agentmill.synthesis.policies.cost import Budget, Prices
from agentmill.synthesis.policies.mistakes import MISTAKES
from agentmill.synthesis.policies.policy import FROM_ENVIRONMENT, PolicySettings
from agentmill.synthesis.policies.rate_limit import Limits
from agentmill.synthesis.policies.scripted import THOUGHTS

HEADER = re.compile(r"[A-Za-z0-9-]+")
SECRET = re.compile("auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
"""Names of headers whose values are secrets."""

OURS = frozenset({"model", "messages", "tools", "stream", "stream_options", "n"})
"""What of a request is decided here alone: one answer, in one piece, to one conversation."""

OF_VLLM = frozenset({"seed", "logprobs", "return_token_ids", "structured_outputs"})

OF_REQUESTS = frozenset({"endpoints", "api_key_variable", "turn_timeout_s", "patience_s", "max_retries"})
OF_ONE_POLICY = {"turns": "scripted", "server": "vllm", "mistakes": "expert", "thoughts": "expert"}
OF_SERVED_WRITERS = ("chat_template", "lora", "tool_call_parser")
"""Settings of a server that say how its model writes, or is asked to."""

BUILT_IN = ("expert", "openai", "scripted", "vllm")
"""Policies that are no plug-ins: what they do not use is refused."""

SAMPLED = ("openai", "vllm")
"""The policies whose turns are sampled from a model."""


class ModelConfig(Config):
    """One entry of ``models``.

    A secret never is in a recipe: the API key, and headers that may be one, are read from the environment.
    """

    policy: str = Field(description=f"who acts: {', '.join(BUILT_IN)}, or a policy of a plug-in")
    model: str | None = Field(
        default=None,
        description="a model folder, bundled:NAME or, where no folder is called so, ORG/NAME[@REVISION] on the Hub; "
        "with `endpoints` the name it is served under there; null: the policy needs none",
    )
    endpoints: list[str] = Field(
        default=[], description="addresses of servers, such as http://127.0.0.1:8000/v1; empty: vllm starts its own"
    )
    api_key_variable: str | None = Field(
        default=None, description="the environment variable that holds the API key; null: no key"
    )
    headers: dict[str, str] = Field(
        default={}, description="HTTP headers of each request; the value env:NAME is read from the environment"
    )
    extra_body: dict[str, Any] = Field(
        default={}, description="parameters of each request that `sampling` has no name for"
    )
    adapter: str | None = Field(
        default=None,
        description="which entry of `server.lora` acts; with `endpoints` the name it is served under there; null: the "
        "model itself",
    )
    revision: str | None = Field(
        default=None,
        description="the revision of a model behind `endpoints`, for the record; null: not known. A model folder has "
        "the digest of its files",
    )
    server: ServerConfig = Field(default=ServerConfig(), description="the vLLM servers that the run starts")
    sampling: SamplingConfig = Field(default=SamplingConfig(), description="how answers are sampled")
    turn_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="seconds that a turn may take with all its retries; those that `limits` hold it back do not count",
    )
    patience_s: float = Field(
        default=60.0,
        ge=0,
        description="seconds more that a server that cannot be reached is waited for; one that the run starts, at "
        "least `server.start_timeout_s`",
    )
    max_retries: int = Field(
        default=8, ge=0, description="how often a request is sent again after an error of the server or the connection"
    )
    limits: Limits = Field(default=Limits(), description="how fast the model may be asked")
    prices: Prices | None = Field(default=None, description="what its tokens cost; null: costs are not counted")
    budget: Budget | None = Field(default=None, description="what the model may cost in a run; null: no limit")
    turns: list[str] = Field(default=[], description="what the policy scripted writes, one text for each turn")
    mistakes: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="the probability that the policy expert errs at a turn, where it takes the place of a model; null: "
        "it never errs, and takes the place of none",
    )
    thoughts: Literal["plan"] | None = Field(
        default=None, description="plan: the policy expert writes its plan before each action; null: no thoughts"
    )
    context_window: int | None = Field(
        default=None,
        ge=16,
        description="tokens of the longest request that `endpoints` take, for `agentmill plan`; null: not known",
    )
    # No fields: servers go by the fields, and two entries of one model share a server.
    _entry: str | None = PrivateAttr(None)
    _scores: bool | None = PrivateAttr(None)

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str) -> str:
        if policy not in POLICIES:
            known = ", ".join(sorted(POLICIES))
            raise ValueError(f"unknown policy {policy!r}; known: {known}.{near_match(policy, POLICIES)}")
        return policy

    @field_validator("endpoints")
    @classmethod
    def _base_urls(cls, endpoints: list[str]) -> list[str]:
        for url in endpoints:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is no address; expected for example http://127.0.0.1:8000/v1")
            if url.rstrip("/").endswith("/chat/completions"):
                base = url.rstrip("/").removesuffix("/chat/completions")
                raise ValueError(f"{url!r} is the address of chats alone; give that of the API, {base}")
        return [url.rstrip("/") for url in endpoints]

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not HEADER.fullmatch(name) or not value.isprintable():
                raise ValueError(f"{name!r}: {value!r} is no HTTP header; expected for example X-Title: my-run")
            if SECRET.search(name) and not value.startswith(FROM_ENVIRONMENT):
                raise ValueError(f"the value of {name!r} may be a secret: export it, and write {name}: env:VARIABLE")
        return headers

    @field_validator("extra_body")
    @classmethod
    def _extra(cls, extra_body: dict[str, Any]) -> dict[str, Any]:
        for name in extra_body:
            if name in SamplingConfig.model_fields:
                raise ValueError(f"{name!r} belongs into `sampling`")
            if name in OURS:
                raise ValueError(f"{name!r} is set for each request and cannot be given; leave it out")
        return extra_body

    @model_validator(mode="after")
    def _complete(self) -> ModelConfig:
        asked = self.policy in SAMPLED
        given = self.given()
        unused = sorted({"extra_body", "headers", "limits", "prices", "sampling"} & given)
        unused += sorted(OF_REQUESTS & given) if self.policy in ("expert", "scripted") else []
        if unused and not asked:
            raise ValueError(f"policy {self.policy!r} sends no requests, so it has no `{unused[0]}`")
        for name, policy in OF_ONE_POLICY.items():
            if name in given and self.policy != policy and self.policy in BUILT_IN:
                raise ValueError(f"`{name}` is for policy {policy!r}, and this one is {self.policy!r}; leave it out")
        if self.thoughts is not None and self.mistakes is not None:
            raise ValueError("`thoughts` are the plan that is kept to, and with `mistakes` it is not; give one of them")
        if self.managed and self.revision is not None:
            raise ValueError(
                "`revision` is for models behind `endpoints`; that of a folder is the digest of its files, and one on"
                " the Hub is written behind the name of its model: ORG/NAME@REVISION"
            )
        taken = sorted(OF_VLLM & self.extra_body.keys())
        if taken and self.policy == "vllm":
            raise ValueError(f"`extra_body.{taken[0]}` is set for each request by policy 'vllm'; leave it out")
        if self.context_window is not None and not self.endpoints:
            raise ValueError("`context_window` is for models behind `endpoints`; of ours it is `server.max_model_len`")
        if self.policy in SAMPLED and self.model is None:
            raise ValueError(f"policy {self.policy!r} needs `model`")
        if self.policy == "openai" and not self.endpoints:
            raise ValueError("policy 'openai' needs `endpoints`, for example [http://127.0.0.1:8000/v1]")
        if self.adapter is not None and not self.endpoints and self.adapter not in self.server.lora:
            raise ValueError(f"adapter {self.adapter!r} is not in `server.lora`")
        if self.budget is not None and self.policy not in SAMPLED:
            raise ValueError(f"policy {self.policy!r} costs nothing, so it has no `budget`")
        if self.budget is not None and self.budget.usd is not None and self.prices is None:
            raise ValueError("`budget.usd` needs `prices`, for example prices: {input: 2.5, output: 10}")
        return self

    def given(self) -> set[str]:
        """The fields that were given, and not as they are by default."""
        fields = type(self).model_fields
        return {
            name
            for name in self.model_fields_set
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        }

    @property
    def entry(self) -> str | None:
        """Its name in ``models``; what is trained from it is of the same entry."""
        return self._entry

    def named(self, entry: str) -> ModelConfig:
        """The same, of the given entry."""
        config = self.model_copy()
        config._entry = entry
        return config

    def pinned(self, revisions: Mapping[str, str]) -> ModelConfig:
        """The same, with what is on the Hub at the commits in ``revisions``, as far as they have them."""
        if not self.managed or self.model is None:
            return self
        adapters = {name: pinned_model(folder, revisions) for name, folder in self.server.lora.items()}
        server = self.server if adapters == self.server.lora else self.server.model_copy(update={"lora": adapters})
        return self.model_copy(update={"model": pinned_model(self.model, revisions), "server": server})

    @property
    def adapter_path(self) -> str | None:
        """The adapter that acts, where servers of ours have it: a folder, or one on the Hub."""
        return None if self.adapter is None or not self.managed else self.server.lora[self.adapter]

    def trained(self, folder: str, scores: bool) -> ModelConfig:
        """What a training makes of it in ``folder``; with ``scores`` it is a reward model."""
        config = self.model_copy(update={"model": folder})
        if scores:
            # How it writes is of no use for a model that writes nothing.
            unused = {name: type(config.server).model_fields[name].get_default() for name in OF_SERVED_WRITERS}
            update = {"server": config.server.model_copy(update={**unused, "lora": {}}), "sampling": SamplingConfig()}
            config = config.model_copy(update={**update, "extra_body": {}})
        config._scores = scores
        return config

    @property
    def scores(self) -> bool | None:
        """Whether it is a reward model, which scores text and writes none; ``None`` where that cannot be known.

        Raises ``UserError`` for a model folder whose configuration is damaged.
        """
        if self._scores is not None or not self.managed or self.model is None:
            return self._scores
        if self.model.startswith(BUNDLED):
            return False
        folder = model_path(self.model)
        return is_reward_model(folder) if (folder / "config.json").is_file() else None

    @property
    def stands_in(self) -> bool:
        """Whether it is an expert that errs, which stands in for a model of any kind."""
        return self.policy == "expert" and self.mistakes is not None

    @property
    def managed(self) -> bool:
        """Whether servers have to be started for it."""
        return self.policy == "vllm" and not self.endpoints

    @property
    def unused_of_server(self) -> list[str]:
        """The settings of a server that are given together with ``endpoints``, where the run starts none."""
        if not self.endpoints:
            return []
        # The length of a context is still used, to count the tokens of a plan.
        given = self.server.model_dump(exclude={"max_model_len"}, exclude_defaults=True)
        return [f"`server.{name}`" for name in sorted(given)]

    @property
    def served_name(self) -> str:
        """What the model is called without an adapter: its name without the folders it is in."""
        name = (self.model or "").removeprefix(BUNDLED).rstrip("/")
        hub = hub_model(name) if self.managed else None
        return Path(name if hub is None else hub.repo).name if self.managed else name

    @property
    def base_name(self) -> str:
        """What a server of ours calls the model without an adapter: vLLM takes an adapter of the same name for it."""
        name = self.served_name
        while name in self.server.lora:
            name += "@base"
        return name

    @property
    def acting_name(self) -> str:
        """What is asked of the endpoints: the adapter, or else the model."""
        return self.adapter or (self.base_name if self.managed else self.model or "")

    @property
    def display_name(self) -> str | None:
        """What trajectories call the model, adapter included."""
        if self.model is None:
            return None
        return f"{self.served_name}+{self.adapter}" if self.adapter else self.served_name

    def settings(
        self, endpoints: Sequence[Endpoint] = (), revision: str | None = None, sampling: Mapping[str, Any] | None = None
    ) -> PolicySettings:
        """The policy as data for workers; entries of ``sampling`` go before those of the config.

        ``revision`` is that of the model folder; an adapter of ours adds its own.
        """
        of_expert = {MISTAKES: self.mistakes, THOUGHTS: self.thoughts}
        chosen: JsonObject = {name: value for name, value in of_expert.items() if value is not None}
        if self.policy in SAMPLED:
            chosen = {**self.sampling.sent(sampling or {}), **self.extra_body}
        return PolicySettings(
            policy=self.policy,
            entry=self.entry,
            name=self.display_name,
            revision=self.with_adapter(revision or self.revision),
            model=endpoints[0].model if endpoints else None,
            endpoints=[endpoint.base_url for endpoint in endpoints],
            api_key_variable=self.api_key_variable,
            headers=self.headers,
            sampling=chosen,
            turn_timeout_s=self.turn_timeout_s,
            patience_s=max(self.patience_s, self.server.start_timeout_s) if self.managed else self.patience_s,
            max_retries=self.max_retries,
            limits=self.limits,
            prices=self.prices,
            budget=self.budget,
            turns=self.turns,
        )

    def with_adapter(self, revision: str | None) -> str | None:
        """The ``revision`` of the model with that of the adapter that acts."""
        path = self.adapter_path
        return revision if path is None else f"{revision}+{model_revision(model_path(path))}"


def check_scorer(config: ModelConfig, name: str) -> None:
    """Raises ``UserError`` for a model, called ``name`` in the recipe, that scores no text, or is given a way to write.

    What is behind endpoints is believed, and an expert that errs draws scores.
    """
    if config.stands_in:
        return
    if config.policy != "vllm" or config.scores is False:
        kind = f"has the policy {config.policy!r}" if config.policy != "vllm" else "writes text"
        raise UserError(
            f"model {name!r} {kind} and cannot score\n"
            "expected policy: vllm with a reward model, or the name of a train_reward step before this one",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    if config.adapter is not None:
        raise UserError(
            f"model {name!r} is an adapter and cannot score\n"
            "train it without lora.merge: false, or make a whole model of it with agentmill merge",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    given = [f"server.{each}" for each in OF_SERVED_WRITERS if getattr(config.server, each)]
    unused = [*sorted({"extra_body", "sampling"} & config.given()), *given]
    if unused:
        raise UserError(
            f"model {name!r} scores and writes nothing, so it has no `{unused[0]}`; leave it out",
            ErrorCode.KEY_NOT_FOR_THIS,
        )


def check_tokenizer_known(config: ModelConfig, tokenizer: str | None) -> None:
    """Raises ``UserError`` unless a scorer behind endpoints, and it alone, is given the folder of its ``tokenizer``."""
    if config.stands_in:
        return
    if config.managed and tokenizer is not None:
        raise UserError(
            "`tokenizer` is for a scorer behind endpoints; this one has its own, so leave it out",
            ErrorCode.KEY_NOT_FOR_THIS,
        )
    if not config.managed and tokenizer is None:
        raise UserError(
            "the scorer is behind endpoints, and it is sent tokens, so `tokenizer` is missing\n"
            "name a folder with the files of its model (all but the weights)",
            ErrorCode.NEEDS_ANOTHER_KEY,
        )
