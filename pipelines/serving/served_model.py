"""A model as a step uses it: configuration, revision of its weights, and, while it is served, its endpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.model_folders import check_base_of, model_folder
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.models import model_revision
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.policies.policy import PolicySettings

WINDOW_PER_SEQUENCE = 2
DEFAULT_WINDOW = 64
TURNS_PER_MINUTE = 4


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a step uses. ``revision`` tells its weights; ``endpoints`` are known only while it is served.

    ``workers`` worker processes share its limits, and the ``ledger`` of what it has cost, by ``step``.
    """

    config: ModelConfig
    revision: str | None = None
    endpoints: list[Endpoint] = []
    workers: int = 1
    ledger: str | None = None
    step: str = ""

    @classmethod
    def of(cls, config: ModelConfig, workers: int = 1, ledger: str | None = None) -> ServedModel:
        """A model as configured, not served yet; the files of one that we will serve are read for its revision.

        Raises ``UserError`` where there is no such model, or the adapter that acts was trained on another one.
        """
        managed, adapter = config.managed and config.model is not None, config.adapter_path
        revision = model_revision(model_folder(str(config.model))) if managed else None
        if adapter is not None and revision is not None:
            check_base_of(adapter, str(config.model), lambda: revision)
        return cls(config=config, revision=revision, workers=workers, ledger=ledger)

    @property
    def window(self) -> int:
        """How many episodes in flight keep it busy: twice what its servers work on at once, since some are in an
        environment.

        Of other people's endpoints that is known if ``limits`` say so; else it is ``DEFAULT_WINDOW`` for each. Behind
        limits no more than these let take four turns a minute each: time runs on for what queues.
        """
        servers = max(1, len(self.endpoints or self.config.endpoints))
        if self.config.managed:
            return WINDOW_PER_SEQUENCE * self.config.server.sequences * servers
        limits = self.config.limits.share(self.workers)
        concurrent = WINDOW_PER_SEQUENCE * (limits.max_concurrent or 0) or DEFAULT_WINDOW * servers
        paced = (limits.requests_per_minute or math.inf) / TURNS_PER_MINUTE
        return int(max(1, min(concurrent, paced)))

    def settings(self, sampling: Mapping[str, Any]) -> PolicySettings:
        """The policy as data; entries of ``sampling`` go before those of the config."""
        settings = self.config.settings(self.endpoints, self.revision, sampling)
        return msgspec.structs.replace(
            settings, limits=settings.limits.share(self.workers), ledger=self.ledger, step=self.step
        )

    def scorer_settings(self, tokenizer: str | None = None) -> PolicySettings:
        """The reward model as data; ``tokenizer`` is the folder of its tokenizer, by default its own."""
        own = str(model_folder(str(self.config.model))) if self.config.managed else None
        return msgspec.structs.replace(self.settings({}), sampling={}, tokenizer=tokenizer or own)

    def identity(self, sampling: Mapping[str, Any]) -> JsonObject:
        """What of it decides what it makes, ids included: not where it is served, nor how patiently it is asked."""
        settings = self.settings(sampling)
        fields = ("policy", "entry", "name", "revision", "sampling", "turns")
        server = self.config.server.identity() if self.config.managed else {}
        given = {"headers": settings.headers, "server": server}
        known = {field: getattr(settings, field) for field in fields}
        return {**known, **{name: value for name, value in given.items() if value}}
