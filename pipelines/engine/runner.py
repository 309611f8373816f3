"""Which Beam runner a stage runs on, and its options, checked by name before anything starts.

``embedded`` runs in this process, ``multi_processing`` in ``workers`` processes of this machine, ``multi_threading`` in
threads, ``bundle_retry`` on the local runner that retries failed bundles. ``portable``, ``flink``, ``spark`` and
``dataflow`` go to a cluster; its workers need the run directory under the same path. Beam's ``DirectRunner`` is not
offered: it changes the engine by itself and downloads another one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agentmill.pipelines.engine import stop
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.synthesis.sandbox.memory import PROCESSES

RunnerName = Literal[
    "embedded", "multi_processing", "multi_threading", "bundle_retry", "portable", "flink", "spark", "dataflow"
]

_OURS = {"runner": "name", "direct_running_mode": "name", "direct_num_workers": "workers", "save_main_session": "name"}
"""Beam options that this configuration has a word of its own for."""

_CONNECT_TIMEOUT_S = 5.0


class RunnerConfig(Config):
    """Where Beam runs. ``options`` are Beam's pipeline options, by their names there."""

    name: RunnerName = Field(default="embedded", description="the runner")
    workers: int = Field(default=1, ge=1, le=256, description="worker processes or threads of a local runner")
    start_timeout_s: float = Field(default=600.0, gt=0, description="seconds a cluster has to start a worker")
    stall_timeout_s: float = Field(
        default=120.0, ge=10, description="seconds without progress after which a silent worker is given up"
    )
    options: dict[str, Any] = Field(default={}, description="pipeline options of Beam, such as job_endpoint")

    @property
    def remote(self) -> bool:
        """Whether workers are started elsewhere, where they may wait, or never come."""
        return self.name in ("portable", "flink", "spark", "dataflow")

    def check(self) -> None:
        """Raises ``UserError`` for an option that Beam does not know, and for a runner that cannot start here."""
        if self.name in ("embedded", "bundle_retry") and self.workers > 1:
            raise UserError(
                f"runner {self.name} has one worker, not {self.workers}:"
                " set runner.name=multi_processing, or workers=1",
                ErrorCode.RUNNER_OPTION_REFUSED,
            )
        with quiet_beam():
            self.beam_options()
        if self.name in ("portable", "flink", "spark"):
            _check_job_server(self.name, self.options)
        if self.name == "dataflow":
            _check_dataflow(self.options)

    def beam_options(self) -> Any:
        """The ``PipelineOptions``. Raises ``UserError`` for an unknown name or a value of the wrong type."""
        from apache_beam.options.pipeline_options import PipelineOptions

        known = _known_options()
        for name in self.options:
            if name in _OURS:
                raise UserError(
                    f"runner.options.{name}: set runner.{_OURS[name]} instead", ErrorCode.RUNNER_OPTION_REFUSED
                )
            if name not in known:
                raise UserError(
                    f"runner.options: Beam has no option {name!r}.{near_match(name, known)}", ErrorCode.UNKNOWN_NAME
                )
        workers = {"direct_num_workers": self.workers} if self.name.startswith("multi_") else {}
        complaint = io.StringIO()
        try:
            # Beam reads values with argparse, which prints its complaint and exits.
            with contextlib.redirect_stderr(complaint):
                options = PipelineOptions.from_dictionary({**self.options, **workers})
                options.get_all_options()
        except SystemExit:
            lines = complaint.getvalue().strip().splitlines() or ["unreadable"]
            raise UserError(
                f"runner.options: {lines[-1].partition('error: ')[2] or lines[-1]}", ErrorCode.RUNNER_OPTION_REFUSED
            ) from None
        return options

    def beam_runner(self, log: Path, stop_file: Path) -> Any:
        """The runner. Its worker processes on this machine write to ``log``, and end when ``stop_file`` is there."""
        if self.name == "bundle_retry":
            from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

            return BundleBasedDirectRunner()
        if self.name in ("embedded", "multi_processing", "multi_threading"):
            return _local_runner(self.name, self.workers, log, stop_file)
        from apache_beam.runners.runner import create_runner

        return create_runner(f"{self.name.capitalize()}Runner")


def _local_runner(name: str, workers: int, log: Path, stop_file: Path) -> Any:
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.transforms import environments

    if name == "embedded":
        return FnApiRunner()
    if name == "multi_threading":
        return FnApiRunner(default_environment=environments.EmbeddedPythonGrpcEnvironment.default())
    # -P: a folder of the working directory must not come before a package of the same name.
    worker = [sys.executable, "-P", "-m", "agentmill.pipelines.engine.worker_process", str(os.getpid()), str(stop_file)]
    shared = f"{PROCESSES}={workers}"  # the memory of sandboxes is bounded over all workers together
    # Signals to the process group are for the launcher, also while the worker is not there yet.
    # ``exec``, so that the process whose end Beam waits for and reports is the worker itself.
    command = f"trap '' INT TERM; exec env {shared} {shlex.join(worker)} >>{shlex.quote(str(log))} 2>&1"
    return FnApiRunner(default_environment=environments.SubprocessSDKEnvironment.from_command_string(command))


def _known_options() -> set[str]:
    """Names of all options that Beam's option classes define, as flags and as attributes."""
    from apache_beam.options import pipeline_options

    # Beam itself ignores options that it does not know, and would take a prefix for the option.
    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
    for options in pipeline_options.PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    actions = parser._actions
    return {flag.lstrip("-") for action in actions for flag in action.option_strings if flag.startswith("--")}


def _check_job_server(name: str, options: dict[str, Any]) -> None:
    endpoint, jar_option = options.get("job_endpoint"), f"{name}_job_server_jar"
    if endpoint is None and name != "portable" and jar_option in options:
        if not Path(str(options[jar_option])).is_file():
            raise UserError(
                f"runner.options.{jar_option}: there is no file {options[jar_option]}", ErrorCode.NO_SUCH_FILE
            )
        if shutil.which("java") is None:
            raise UserError(
                f"runner.options.{jar_option} needs `java` on the PATH; there is none", ErrorCode.PROGRAM_MISSING
            )
        return
    if endpoint is None:
        other = "" if name == "portable" else f", or {jar_option}: FILE"
        raise UserError(
            f"runner {name} needs a job server: set runner.options.job_endpoint=HOST:PORT{other}",
            ErrorCode.RUNNER_OPTION_MISSING,
        )
    host, _, port = str(endpoint).rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"runner.options.job_endpoint: no job server answers at {endpoint} ({error})",
            ErrorCode.JOB_SERVER_UNREACHABLE,
        ) from None


def _check_dataflow(options: dict[str, Any]) -> None:
    missing = [name for name in ("project", "region", "temp_location") if name not in options]
    if missing:
        raise UserError(f"runner dataflow needs runner.options: {', '.join(missing)}", ErrorCode.RUNNER_OPTION_MISSING)
    try:
        found = importlib.util.find_spec("google.cloud.storage")
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None:
        raise UserError(
            "runner dataflow needs Beam's Google Cloud parts: pip install 'apache-beam[gcp]==2.77.0'",
            ErrorCode.EXTRA_MISSING,
        )


@contextlib.contextmanager
def quiet_beam() -> Iterator[None]:
    """Around all use of Beam: it logs each exception several times, and complains of parts that are not installed.

    At the first complaint a root logger without a handler would moreover get one for good; so it gets, for as long as
    this lasts, the one that Python falls back on.
    """
    beam, root, fallback = logging.getLogger("apache_beam"), logging.getLogger(), logging.lastResort
    level, disabled = beam.level, root.disabled
    borrowed = fallback if fallback is not None and not root.handlers else None
    beam.setLevel(logging.CRITICAL)
    root.disabled = True
    if borrowed is not None:
        root.addHandler(borrowed)
    try:
        yield
    finally:
        if not stop.stopped.is_set():  # threads of a run that was interrupted complain when all else is over
            beam.setLevel(level)
        root.disabled = disabled
        if borrowed is not None:
            root.removeHandler(borrowed)
