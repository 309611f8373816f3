"""The same tables on every runner, and what is said where a runner cannot start."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from agentmill.pipelines.engine import run as run_module
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.execute import StageFailed
from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.engine.run import conclude, run_stage
from agentmill.pipelines.engine.runner import RunnerConfig, quiet_beam
from agentmill.pipelines.terminal.progress import LineProgress
from agentmill.schemas.config import validate
from tests.errors import user_error
from tests.pipelines.engine.line import ROOT
from tests.pipelines.engine.operations import Distinct, Explore, Shout
from tests.pipelines.engine.stages import bytes_of, order, task, write_table

pytestmark = pytest.mark.slow

FAULTS = {3: "world", 5: "bug", 6: "skip", 8: "unrepresentable", 11: "policy", 12: "generation"}
OPERATIONS: list[Operation] = [Distinct(), Explore()]
RUNNERS: dict[str, dict[str, Any]] = {
    "embedded": {},
    "bundle_retry": {"name": "bundle_retry", "options": {"direct_runner_bundle_repeat": 1}},
    "multi_threading": {"name": "multi_threading", "workers": 2},
    "multi_processing": {"name": "multi_processing", "workers": 2},
}


@pytest.fixture(autouse=True)
def path_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@contextmanager
def portable_pair(python_folder: Path) -> Iterator[dict[str, Any]]:
    """A job service and a worker pool in processes of their own, as on a cluster.

    Workers run the ``python`` of ``python_folder``: the pool takes the first on the path.
    """
    job_port, pool_port = free_port(), free_port()
    path = f"{python_folder}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    modules = [
        ["apache_beam.runners.portability.local_job_service_main", f"--port={job_port}"],
        ["apache_beam.runners.worker.worker_pool_main", f"--service_port={pool_port}"],
    ]
    with ExitStack() as stack:
        for arguments in modules:
            command = [sys.executable, "-m", *arguments]
            process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
            stack.callback(end_group, process)
        for port in (job_port, pool_port):
            wait_for_port(port)
        options = {
            "job_endpoint": f"localhost:{job_port}",
            "environment_type": "EXTERNAL",
            "environment_config": f"localhost:{pool_port}",
        }
        yield {"name": "portable", "options": options, "start_timeout_s": 60}


def test_same_bytes_on_every_runner(tmp_path: Path) -> None:
    rows = [task(i, FAULTS.get(i, ""), instruction=f"Do thing {i % 23}") for i in range(32)]
    table = write_table(tmp_path / "tasks", [rows[:25], rows[25:]])
    with portable_pair(Path(sys.executable).parent) as portable:
        for operation in OPERATIONS:
            found = {}
            for name, runner in {**RUNNERS, "portable": portable}.items():
                folder = tmp_path / f"{operation.name}-{name}"
                manifest = run_stage(order(operation, table, folder, runner=runner))
                found[name] = bytes_of(folder)
                assert manifest.counts.read == manifest.counts.used + manifest.counts.dropped
            assert all(files == found["embedded"] for files in found.values()), operation.name


def test_a_worker_process_that_dies_in_every_attempt_is_an_error_and_the_stage_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ALIVE", str(tmp_path / "alive"))
    table = write_table(tmp_path / "tasks", [[task(i, "die" if i == 15 else "") for i in range(20)]])
    request = order(Shout(), table, tmp_path / "out", runner=RUNNERS["multi_processing"])
    said = io.StringIO()
    with pytest.raises(StageFailed, match="in 3 attempts: Worker subprocess exited with return code 9"):
        run_stage(request, LineProgress(said))
    assert [line for line in said.getvalue().splitlines() if "attempt" in line] == [
        f"out: Worker subprocess exited with return code 9; attempt {number}" for number in (2, 3)
    ]
    (tmp_path / "alive").touch()
    assert run_stage(request).counts.used == 20


def test_a_worker_that_is_lost_when_its_work_is_done_costs_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*given: Any) -> Any:
        stop.lose("Worker subprocess exited with return code -9")
        return conclude(*given)

    monkeypatch.setattr("agentmill.pipelines.engine.run.conclude", late)
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(20)]])
    assert run_stage(order(Shout(), table, tmp_path / "out")).counts.used == 20
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["data", "manifest.json"]


@pytest.mark.parametrize("first", ["the worker", "the user"])
def test_an_interrupt_ends_a_stage_that_loses_a_worker_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Neither is taken for the other, in whatever order they come."""

    def both(*given: Any) -> None:
        if first == "the worker":
            stop.lost.append("Worker subprocess exited with return code -9")
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            stop.lost.append("Worker subprocess exited with return code -9")

    monkeypatch.setattr("agentmill.pipelines.engine.run.execute", both)
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(20)]])
    with pytest.raises(KeyboardInterrupt):
        run_stage(order(Shout(), table, tmp_path / "out"))


def test_an_interrupt_between_two_attempts_ends_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def lose(*given: Any) -> None:
        stop.lose("Worker subprocess exited with return code -9")
        signal.pause()

    def begin_or_be_interrupted(*given: Any) -> Any:
        begun.append("attempt")
        if len(begun) == 2:
            signal.raise_signal(signal.SIGINT)
        return tracked(*given)

    monkeypatch.setattr("agentmill.pipelines.engine.run.execute", lose)
    tracked = run_module.Tracker
    monkeypatch.setattr("agentmill.pipelines.engine.run.Tracker", begin_or_be_interrupted)
    table = write_table(tmp_path / "tasks", [[task(i) for i in range(20)]])
    with pytest.raises(KeyboardInterrupt):
        run_stage(order(Shout(), table, tmp_path / "out"))
    assert len(begun) == 2


@pytest.mark.parametrize("name", ["multi_processing", "portable"])
def test_a_worker_that_falls_silent_is_given_up_and_another_attempt_does_the_rest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ALIVE", str(tmp_path / "alive"))
    table = write_table(tmp_path / "tasks", [[task(i, "stop" if i == 15 else "") for i in range(20)]])
    said = io.StringIO()
    with portable_pair(Path(sys.executable).parent) if name == "portable" else nullcontext(RUNNERS[name]) as runner:
        request = order(Shout(), table, tmp_path / "out", runner={**runner, "stall_timeout_s": 10})
        assert run_stage(request, LineProgress(said)).counts.used == 20
    (told,) = [line for line in said.getvalue().splitlines() if "attempt" in line]
    assert re.fullmatch(
        rf"out: worker \d+ on {socket.gethostname()} has been silent for 1\d s, with chunk 1; attempt 2", told
    )
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["data", "manifest.json"]


def test_worker_processes_share_the_memory_of_sandboxes(tmp_path: Path) -> None:
    runner = RunnerConfig(name="multi_processing", workers=3).beam_runner(tmp_path / "log", tmp_path / "stop")
    assert "exec env AGENTMILL_SANDBOX_PROCESSES=3 " in runner._default_environment.command_string


def test_a_pool_that_starts_no_worker_ends_in_an_error(tmp_path: Path) -> None:
    table = write_table(tmp_path / "tasks", [[task(0)]])
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    with portable_pair(tmp_path) as portable:
        runner = {**portable, "start_timeout_s": 1.0}
        with pytest.raises(StageFailed, match="no worker started within 1 s"):
            run_stage(order(Shout(), table, tmp_path / "out", runner=runner))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"options": {"job_endpont": "x"}}, ("unknown-name", "job_endpont", "job_endpoint")),
        ({"options": {"runner": "DirectRunner"}}, ("runner-option-refused", "runner.options.runner", "runner.name")),
        ({"options": {"direct_num_workers": 2}}, ("runner-option-refused", "runner.workers")),
        ({"options": {"job_server_timeout": "long"}}, ("runner-option-refused", "long")),
        ({"workers": 4}, ("runner-option-refused", "4", "runner.name")),
        ({"name": "portable"}, ("runner-option-missing", "runner.options.job_endpoint")),
        ({"name": "flink"}, ("runner-option-missing", "flink")),
        ({"name": "spark", "options": {"spark_job_server_jar": "/nowhere.jar"}}, ("no-such-file", "/nowhere.jar")),
        ({"name": "portable", "options": {"job_endpoint": "localhost:1"}}, ("job-server-unreachable", "1")),
        ({"name": "dataflow"}, ("runner-option-missing", "runner.options")),
    ],
)
def test_a_runner_that_cannot_start_is_refused(config: dict[str, Any], expected: tuple[str, ...]) -> None:
    with user_error(*expected):
        RunnerConfig.model_validate(config).check()


def test_an_unknown_runner_gets_a_near_match() -> None:
    with user_error("invalid-value", "recipe.yaml", "name"):
        validate(RunnerConfig, {"name": "embeded"}, "recipe.yaml")


def test_options_reach_beam() -> None:
    options = RunnerConfig(name="multi_processing", workers=3, options={"job_name": "mill"}).beam_options()
    assert options.get_all_options()["direct_num_workers"] == 3
    assert options.get_all_options()["job_name"] == "mill"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, 9)
    process.wait()


def test_beam_is_quiet_and_others_are_heard(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        with quiet_beam():
            logging.warning("apitools not found")
            logging.getLogger("apache_beam.runners").error("Traceback ...")
            logging.getLogger("agentmill.pipelines.serving.servers").warning("the server died")
        assert root.handlers == []
    finally:
        root.handlers = handlers
    assert capfd.readouterr().err == "the server died\n"
