"""The models of a run while it runs: served from the first stage that needs them to the last that does in a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from pipelines.engine.endpoints import Endpoint
from pipelines.engine.servers import LOGS, serve
from pipelines.models import ModelConfig
from pipelines.stages.stage import Model
from synthesis.policies.spending import LEDGER

ServerKey = str


class ModelPool:
    """Keeps the servers of consecutive stages up, and at most those of one stage at a time: each takes gigabytes."""

    def __init__(self, run_dir: Path, say: Callable[[str], None], workers: int = 1) -> None:
        self._run_dir = run_dir
        self._workers = workers
        self._say = say
        self._served: dict[ServerKey, tuple[ExitStack, list[Endpoint]]] = {}
        self._known: dict[tuple[str | None, str], Model] = {}

    def known(self, configs: Mapping[str, ModelConfig]) -> dict[str, Model]:
        """The models by role, with their revisions and without endpoints. Raises ``UserError`` for a missing model."""
        keys = {role: (config.entry, config.model_dump_json()) for role, config in configs.items()}
        for role, key in keys.items():
            if key not in self._known:
                self._known[key] = Model.of(configs[role], self._workers, str(self._run_dir / LEDGER))
        return {role: self._known[key] for role, key in keys.items()}

    def endpoints(self, configs: Mapping[str, ModelConfig]) -> dict[str, list[Endpoint]]:
        """Where the models can be asked, by role; servers that none of them needs are stopped first.

        Raises as ``serve``.
        """
        self._stop(self._served.keys() - {server_key(config) for config in configs.values()})
        return {role: self._endpoints(config) for role, config in configs.items()}

    def stop(self) -> None:
        """Stop all servers."""
        self._stop(list(self._served))

    def _endpoints(self, config: ModelConfig) -> list[Endpoint]:
        key = server_key(config)
        if key not in self._served:
            begun = time.monotonic()
            if config.managed:
                self._say(f"starting the server of {config.display_name}; its log is in {self._run_dir / LOGS}")
            stack = ExitStack()
            self._served[key] = (stack, stack.enter_context(serve(config, self._run_dir)))
            if config.managed:
                self._say(f"the server of {config.display_name} is ready after {time.monotonic() - begun:.0f} s")
        endpoints = self._served[key][1]
        return [msgspec.structs.replace(endpoint, model=config.acting_name) for endpoint in endpoints]

    def _stop(self, keys: Iterable[ServerKey]) -> None:
        with ExitStack() as stopping:
            for key in list(keys):
                stack, _ = self._served.pop(key)
                stopping.push(stack)


def server_key(config: ModelConfig) -> ServerKey:
    """Equal for models that the same servers can serve: a model and its adapters, however answers are sampled."""
    of_the_client = {
        "sampling",
        "turn_timeout_s",
        "patience_s",
        "max_retries",
        "limits",
        "prices",
        "budget",
        "turns",
        "extra_body",
    }
    return config.model_dump_json(exclude=of_the_client | ({"adapter"} if config.managed else set()))
