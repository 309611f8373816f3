"""Model servers for the length of a run: found ready or started, watched, restarted and stopped.

Whoever serves owns the servers; policies know addresses only. A server that dies is started again at the same port,
while policies repeat what they asked for.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from agentmill.pipelines.serving.chat_template import check_rendering, check_template
from agentmill.pipelines.serving.endpoints import Endpoint, check_endpoint, free_ports, is_free, is_healthy
from agentmill.pipelines.serving.gpus import Groups
from agentmill.pipelines.serving.model_folders import model_folder
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.pipelines.serving.server_process import HUNG_S, ServerError, ServerPlan, ServerProcess, ServerRecords
from agentmill.pipelines.serving.vllm_command import server_gpus, vllm_command, vllm_environment
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, is_interrupt
from agentmill.schemas.templates.process import read_template
from agentmill.synthesis.policies.cost import LEDGER
from agentmill.synthesis.policies.policy import api_key, header_values

LOGS = "logs"
MOST_PORT = 65_535
POLL_S = 0.5
HEALTH_POLL_S = 10.0
HEALTH_TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


@contextmanager
def serve(config: ModelConfig, run_dir: Path, gpus: Groups | None = None) -> Iterator[list[Endpoint]]:
    """The endpoints of a model, ready, for as long as the block lasts; none for a policy that asks no model.

    ``gpus`` are those of each server; by default it has all GPUs to itself.

    Raises ``UserError`` for addresses that cannot be reached and for what cannot be started, ``ServerError`` for a
    server that does not come up or that died more often than ``server.restarts`` allows.
    """
    if not config.managed:
        yield _given(config)
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    records = ServerRecords(run_dir)
    # Strays of a killed run hold the memory that the new servers need.
    records.reap()
    with run_servers(
        plans_of(config, run_dir, gpus), records, config.server.start_timeout_s, config.server.restarts
    ) as ready:
        yield ready


@contextmanager
def run_servers(
    plans: Sequence[ServerPlan], records: ServerRecords, start_timeout_s: float, restarts: int
) -> Iterator[list[Endpoint]]:
    """Start the servers, watch them while the block lasts, and stop them whatever happens."""
    servers = [ServerProcess(plan, records, restarts) for plan in plans]
    with ExitStack() as stack:
        # Each is stopped, also where stopping another one fails, as on a full device.
        for server in reversed(servers):
            stack.callback(server.stop)
        # All are started before the first is waited for, so that they load at the same time.
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready(start_timeout_s)
        with ServerWatchdog(servers, start_timeout_s):
            yield [plan.endpoint for plan in plans]


class ServerWatchdog:
    """A thread that starts servers again when they die, or when their front end no longer answers.

    When a server is given up, the main thread is interrupted, for nothing good can come of going on; ``ServerError``
    is raised on leaving the block, in the place of the ``KeyboardInterrupt``.
    """

    def __init__(self, servers: Sequence[ServerProcess], start_timeout_s: float) -> None:
        self._servers = servers
        self._start_timeout_s = start_timeout_s
        self._asked_at = dict.fromkeys(servers, time.monotonic())
        self._silent_since: dict[ServerProcess, float] = {}
        self._restarting: dict[ServerProcess, threading.Thread] = {}
        self._given_up: ServerError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-watch", daemon=True)

    def __enter__(self) -> ServerWatchdog:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stopping.set()
        self._thread.join()
        for thread in self._restarting.values():
            thread.join()
        if self._given_up is not None and (error is None or is_interrupt(error)):
            raise self._given_up from None

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S) and self._given_up is None:
            for server in self._servers:
                # While one loads, the others are watched, and those that died with it load at the same time.
                thread = self._restarting.get(server)
                if thread is None or not thread.is_alive():
                    self._look_at(server)

    def _look_at(self, server: ServerProcess) -> None:
        why = "died" if not server.is_alive() else f"has not answered for {HUNG_S:g} s" if self._hangs(server) else None
        if why is not None:
            self._restarting[server] = threading.Thread(target=self._restart, args=[server, why], daemon=True)
            self._restarting[server].start()

    def _give_up(self, why: str) -> None:
        self._given_up = ServerError(why)
        interrupt_main_thread()

    def _hangs(self, server: ServerProcess) -> bool:
        now = time.monotonic()
        if now - self._asked_at[server] >= HEALTH_POLL_S:
            if is_healthy(server.plan.endpoint.base_url, HEALTH_TIMEOUT_S):
                self._silent_since.pop(server, None)
            else:
                self._silent_since.setdefault(server, now)
            # Counted from the answer, which may take as long as the pause before the next question.
            self._asked_at[server] = time.monotonic()
        return now - self._silent_since.get(server, now) > HUNG_S

    def _restart(self, server: ServerProcess, why: str) -> None:
        try:
            server.start_again(why)
        except ServerError as error:
            self._give_up(str(error))
            return
        except Exception as error:  # noqa: BLE001 - with this thread gone, nobody would learn that the server is
            self._give_up(f"the server of {server.plan.model} cannot be started again: {error}")
            return
        try:
            server.wait_ready(self._start_timeout_s, self._stopping)
        except ServerError as error:
            logger.warning("%s", error)
            server.stop()
        self._silent_since.pop(server, None)


def interrupt_main_thread() -> None:
    """As Ctrl-C would, even out of a blocking call; not where an interrupt is ignored or would just end the process."""
    main = threading.main_thread().ident
    if main is not None and callable(signal.getsignal(signal.SIGINT)):
        signal.pthread_kill(main, signal.SIGINT)


def _given(config: ModelConfig) -> list[Endpoint]:
    """The endpoints that the user gave, each of them checked."""
    key, headers = api_key(config.api_key_variable), header_values(config.headers)
    endpoints = [Endpoint(base_url=url, model=config.acting_name) for url in config.endpoints]
    for endpoint in endpoints:
        check_endpoint(endpoint, key, headers=headers)
    return endpoints


def plans_of(config: ModelConfig, run_dir: Path, gpus: Groups | None = None) -> list[ServerPlan]:
    """One server for each group of GPUs. Raises ``UserError`` for a port in use and for a missing chat template."""
    folder, server = model_folder(config.model or ""), config.server
    if server.chat_template is not None:
        check_rendering(read_template(Path(server.chat_template)))
    elif "--tokenizer-mode" not in server.arguments:
        check_template(folder)
    groups = server_gpus({"": config})[""] if gpus is None else gpus
    return [
        ServerPlan(
            command=vllm_command(folder, config.base_name, server, port),
            environment=vllm_environment(server, group),
            port=port,
            model=config.acting_name,
            log=run_dir / LOGS / f"vllm-{config.served_name}-{port}.log",
        )
        for group, port in zip(groups, _ports(server.port, len(groups)), strict=True)
    ]


def _ports(first: int | None, count: int) -> list[int]:
    """``count`` ports from ``first`` on, or any that are free."""
    if first is None:
        return free_ports(count)
    if first + count - 1 > MOST_PORT:
        raise UserError(
            f"`server.port: {first}` with {count} servers needs ports up to {first + count - 1}; the last one is"
            f" {MOST_PORT}\ngive a lower port, or none to have them chosen",
            ErrorCode.INVALID_VALUE,
        )
    ports = list(range(first, first + count))
    for port in ports:
        if not is_free(port):
            raise UserError(
                f"port {port} is in use; give another one as `server.port`, or none to have one chosen.",
                ErrorCode.PORT_IN_USE,
            )
    return ports


ServerKey = str


class ModelPool:
    """Keeps the servers of consecutive stages up, and at most those of one stage at a time: each takes gigabytes."""

    def __init__(self, run_dir: Path, print_line: Callable[[str], None], workers: int = 1) -> None:
        self._run_dir = run_dir
        self._workers = workers
        self._print_line = print_line
        self._served: dict[ServerKey, tuple[ExitStack, list[Endpoint]]] = {}
        self._gpus: dict[ServerKey, Groups] = {}
        self._known: dict[tuple[str | None, str], ServedModel] = {}

    def known(self, configs: Mapping[str, ModelConfig]) -> dict[str, ServedModel]:
        """The models by role, with their revisions and without endpoints. Raises ``UserError`` for a missing model."""
        keys = {role: (config.entry, config.model_dump_json()) for role, config in configs.items()}
        for role, key in keys.items():
            # Once for a run, since the revision is a digest of all files of the model.
            if key not in self._known:
                self._known[key] = ServedModel.of(configs[role], self._workers, str(self._run_dir / LEDGER))
        return {role: self._known[key] for role, key in keys.items()}

    def endpoints(self, configs: Mapping[str, ModelConfig]) -> dict[str, list[Endpoint]]:
        """Where the models can be asked, by role; servers that none of them needs are stopped first.

        So are those that have GPUs which others need now. Raises as ``serve``.
        """
        needed = {server_key(config): config for config in configs.values()}
        self._stop(self._served.keys() - needed.keys())
        gpus = self._deal({key: config for key, config in needed.items() if config.managed})
        self._stop(key for key, had in self._gpus.items() if gpus[key] != had)
        return {role: self._endpoints(config, gpus.get(server_key(config))) for role, config in configs.items()}

    def _deal(self, needed: Mapping[ServerKey, ModelConfig]) -> dict[ServerKey, Groups]:
        """The GPUs of the servers of the models that are needed; those that are up keep theirs if the others fit."""
        new = {key: config for key, config in needed.items() if key not in self._gpus}
        if not new:
            return dict(self._gpus)
        try:
            return self._gpus | server_gpus(new, {key: (needed[key], had) for key, had in self._gpus.items()})
        except UserError as error:
            if error.code != ErrorCode.GPUS_TOO_FEW or not self._gpus:
                raise
        return server_gpus(needed)

    def stop(self) -> None:
        """Stop all servers."""
        self._stop(list(self._served))

    def _endpoints(self, config: ModelConfig, gpus: Groups | None) -> list[Endpoint]:
        key = server_key(config)
        if key not in self._served:
            begun = time.monotonic()
            if config.managed:
                self._print_line(f"starting the server of {config.display_name}; its log is in {self._run_dir / LOGS}")
            stack = ExitStack()
            self._served[key] = (stack, stack.enter_context(serve(config, self._run_dir, gpus)))
            if gpus is not None:
                self._gpus[key] = gpus
                self._print_line(f"the server of {config.display_name} is ready after {time.monotonic() - begun:.0f} s")
        endpoints = self._served[key][1]
        # A server has a model and its adapters; which of them acts is named in each request.
        return [msgspec.structs.replace(endpoint, model=config.acting_name) for endpoint in endpoints]

    def _stop(self, keys: Iterable[ServerKey]) -> None:
        # A stack stops the others even if one of them raises.
        with ExitStack() as stopping:
            for key in list(keys):
                stack, _ = self._served.pop(key)
                self._gpus.pop(key, None)
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
