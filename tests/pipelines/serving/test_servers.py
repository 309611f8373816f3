"""Servers from start to end, with a small stand-in for the model server: start, failure, crash, restart, stop, reap."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agentmill.pipelines.processes.identity import end_session, identity, is_alive, session_members
from agentmill.pipelines.serving import server_process, servers, vllm_command
from agentmill.pipelines.serving.endpoints import Endpoint, check_endpoint, free_ports, is_free, is_healthy
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.server_process import (
    ServerError,
    ServerPlan,
    ServerProcess,
    ServerRecord,
    ServerRecords,
    reap_strays,
    telling_lines,
)
from agentmill.pipelines.serving.servers import ModelPool, run_servers, serve
from agentmill.schemas.records.trajectory import MessageAction
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import Conversation
from tests.errors import user_error
from tests.fake_openai import FakeOpenAi, Reply, text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def plan(run_dir: Path, *options: str, port: int | None = None) -> ServerPlan:
    chosen = port or free_ports(1)[0]
    command = [sys.executable, "-m", "tests.fake_openai", "--port", str(chosen), *options]
    return ServerPlan(command=command, environment=ENVIRONMENT, port=chosen, model="fake", log=run_dir / "server.log")


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def leaders_of(records: ServerRecords) -> list[int]:
    return [int(record.leader.split(":")[1]) for record in records.read()]


def leader_of(records: ServerRecords) -> int:
    [leader] = leaders_of(records)
    return leader


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_servers_run_for_the_length_of_the_block_and_leave_nothing(tmp_path: Path, temporary: Path) -> None:
    records = ServerRecords(tmp_path)
    plans = [plan(tmp_path, "--child"), plan(tmp_path)]
    with run_servers(plans, records, start_timeout_s=20, restarts=0) as endpoints:
        assert [endpoint.base_url for endpoint in endpoints] == [f"http://127.0.0.1:{one.port}/v1" for one in plans]
        assert all(is_healthy(endpoint.base_url) for endpoint in endpoints)
        leaders = leaders_of(records)
        assert [len(session_members(leader)) for leader in leaders] == [3, 2]
        assert len(list(temporary.iterdir())) == 2
        assert all(is_alive(member) for record in records.read() for member in record.members)
    assert [session_members(leader) for leader in leaders] == [[], []]
    assert list(temporary.iterdir()) == []
    assert records.read() == []
    assert all(is_free(one.port) for one in plans)


def test_a_server_that_ends_at_once_is_explained_by_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match=r"ended while it started.\nFrom its log .*server.log:\n  no such weights"),
        run_servers([plan(tmp_path, "--die-with", "no such weights")], ServerRecords(tmp_path), 20, 3),
    ):
        raise AssertionError("it is not ready")
    assert ServerRecords(tmp_path).read() == []


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (
            "raise SystemExit('no such weights')",
            r"ended while it started.\nFrom its log .*server.log:\n  no such weights",
        ),
        ("import time; time.sleep(60)", r"was not ready within 2 s .*: another process listens on port \d+"),
    ],
)
def test_a_server_of_somebody_else_on_its_port_is_not_taken_for_it(tmp_path: Path, program: str, error: str) -> None:
    with FakeOpenAi([]) as other:
        ours = replace(plan(tmp_path, port=other.port), command=[sys.executable, "-c", program])
        with pytest.raises(ServerError, match=error), run_servers([ours], ServerRecords(tmp_path), 2, 0):
            raise AssertionError("it is not ready")


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        ("one\n\ntwo\n", ["one", "two"]),
        ("\n".join(map(str, range(20))), [str(number) for number in range(12, 20)]),
        (
            "(Core) ERROR [core.py] ValueError: no memory\n  File x\nRuntimeError: see above\n - leaked type\n",
            ["(Core) ERROR [core.py] ValueError: no memory", "  File x", "RuntimeError: see above", " - leaked type"],
        ),
        (
            "usage: x\napi_server.py: error: unrecognized arguments: --y",
            ["api_server.py: error: unrecognized arguments: --y"],
        ),
        (
            "pydantic_core.ValidationError: 1 error\n  too long\n  for more\n",
            ["pydantic_core.ValidationError: 1 error", "  too long"],
        ),
        ("x" * 400, ["x" * 300]),
    ],
)
def test_the_telling_lines_of_a_log_are_its_errors(log: str, lines: list[str]) -> None:
    assert telling_lines(log) == lines


def test_a_server_that_does_not_get_ready_is_given_up(tmp_path: Path) -> None:
    slow = plan(tmp_path, "--start-after", "60")
    with (
        pytest.raises(
            ServerError, match=r"was not ready within 5 s \(`server.start_timeout_s`\): .*Connect call failed"
        ),
        run_servers([slow], ServerRecords(tmp_path), 5, 0),
    ):
        raise AssertionError("it is not ready")
    assert is_free(slow.port)
    assert re.search(r"Fatal Python error: Aborted.*fake_openai.py\", line \d+ in main", slow.log.read_text(), re.S)


def test_a_server_that_hangs_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_process, "HUNG_S", 1.0)
    hanging = plan(tmp_path, "--hang-once", str(tmp_path / "hung"))
    with run_servers([hanging], ServerRecords(tmp_path), 60, restarts=1) as [endpoint]:
        assert is_healthy(endpoint.base_url)
    assert "takes connections and has not answered for 1 s; starting it again" in caplog.text
    assert re.search(r"Fatal Python error: Aborted.*fake_openai.py\", line \d+ in main", hanging.log.read_text(), re.S)


def test_a_server_that_hangs_while_it_starts_once_too_often_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "HUNG_S", 1.0)
    hanging = plan(tmp_path, "--hang-once", str(tmp_path / "hung"))
    with (
        pytest.raises(ServerError, match=r"takes connections and has not answered for 1 s again(.|\n)*then the stacks"),
        run_servers([hanging], ServerRecords(tmp_path), 60, restarts=0),
    ):
        raise AssertionError("it is not ready")
    assert is_free(hanging.port)


async def test_a_server_that_crashes_is_started_again_and_no_turn_is_lost(tmp_path: Path) -> None:
    records = ServerRecords(tmp_path)
    with run_servers([plan(tmp_path, "--answer", "add 1")], records, 20, restarts=1) as endpoints:
        policy = make_policy(ModelConfig(policy="openai", model="fake", endpoints=["http://x"]).settings(endpoints))
        first = leader_of(records)
        os.killpg(first, signal.SIGKILL)
        asked = Conversation(episode_id="e", system_prompt="Count.", content=(), tools=[], seed=0)
        turn = await policy.act(asked)
        await policy.close()
        assert turn.actions == [MessageAction(content="add 1")]
        assert leader_of(records) != first


def test_what_a_killed_server_leaves_is_ended_before_it_is_started_again(tmp_path: Path, temporary: Path) -> None:
    """Its supervisor is killed: the server dies with it, its child stays behind."""
    records = ServerRecords(tmp_path)
    with run_servers([plan(tmp_path, "--child")], records, 20, restarts=1):
        first = leader_of(records)
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: any(leader != first for leader in leaders_of(records)), 20)
        assert session_members(first) == []
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("code", [429, 503])
def test_an_endpoint_that_is_too_busy_to_list_its_models_is_believed(code: int) -> None:
    with FakeOpenAi([], listing=code) as busy:
        check_endpoint(Endpoint(base_url=busy.url, model="any"), None)


def test_a_server_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("HEALTH_POLL_S", 0.2), ("HEALTH_TIMEOUT_S", 0.5), ("HUNG_S", 2.0)):
        monkeypatch.setattr(servers, name, seconds)
    records = ServerRecords(tmp_path)
    with run_servers([plan(tmp_path)], records, 30, restarts=1) as [endpoint]:
        first = leader_of(records)
        [server] = [member for member in session_members(first) if member != first]
        time.sleep(2.5)
        assert leader_of(records) == first, "it answers"
        os.kill(server, signal.SIGSTOP)
        assert eventually(lambda: bool(records.read()) and leader_of(records) != first, within_s=40)
        assert eventually(lambda: is_healthy(endpoint.base_url), within_s=20)


def test_servers_that_died_together_load_at_the_same_time(tmp_path: Path) -> None:
    records = ServerRecords(tmp_path)
    slow = [plan(tmp_path / name, "--start-after", "4") for name in ("a", "b", "c")]
    for each in slow:
        each.log.parent.mkdir()
    with run_servers(slow, records, 60, restarts=1) as endpoints:
        for leader in leaders_of(records):
            os.killpg(leader, signal.SIGKILL)
        began = time.monotonic()
        assert eventually(lambda: not any(is_healthy(each.base_url) for each in endpoints))
        assert eventually(lambda: all(is_healthy(each.base_url) for each in endpoints), within_s=60)
        assert time.monotonic() - began < 11.0


def test_a_server_that_keeps_crashing_ends_the_run_at_once(tmp_path: Path) -> None:
    def killed(records: ServerRecords) -> None:
        with run_servers([plan(tmp_path)], records, 20, restarts=0):
            os.killpg(leader_of(records), signal.SIGKILL)
            time.sleep(60)

    records = ServerRecords(tmp_path)
    with pytest.raises(ServerError, match=r"the server of fake died again"):
        killed(records)
    assert records.read() == []


def test_a_server_that_cannot_be_started_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: ServerProcess) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def killed(records: ServerRecords) -> None:
        with run_servers([plan(tmp_path)], records, 20, restarts=1):
            monkeypatch.setattr(ServerProcess, "start", full)
            os.killpg(leader_of(records), signal.SIGKILL)
            time.sleep(60)

    with pytest.raises(ServerError, match=r"the server of fake cannot be started again: .*No space left"):
        killed(ServerRecords(tmp_path))


LAUNCHER = """
import sys, time
from pathlib import Path
from agentmill.pipelines.serving.server_process import ServerRecords
from agentmill.pipelines.serving.servers import run_servers
from tests.pipelines.serving.test_servers import plan
run_dir = Path(sys.argv[1])
with run_servers([plan(run_dir, "--child", port=int(sys.argv[2]))], ServerRecords(run_dir), 20, 0):
    print("ready", flush=True)
    time.sleep(600)
"""


def launched(run_dir: Path, port: int) -> subprocess.Popen[str]:
    """A process that serves on ``port`` until it is killed."""
    command = [sys.executable, "-c", LAUNCHER, str(run_dir), str(port)]
    environment = {**ENVIRONMENT, "TMPDIR": tempfile.gettempdir()}
    launcher = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.stdout.close()
    return launcher


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_die_with_their_parent(tmp_path: Path, number: signal.Signals, temporary: Path) -> None:
    [port] = free_ports(1)
    launcher = launched(tmp_path, port)
    leader = leader_of(ServerRecords(tmp_path))
    assert len(session_members(leader)) == 3
    assert len(list(temporary.iterdir())) == 1
    launcher.send_signal(number)
    launcher.wait(20)
    assert eventually(lambda: not session_members(leader))
    assert eventually(lambda: not list(temporary.iterdir()))
    assert is_free(port)
    assert reap_strays(tmp_path) == []
    assert ServerRecords(tmp_path).read() == []


def test_strays_of_a_killed_run_are_reaped_at_the_next_start(tmp_path: Path) -> None:
    """Launcher and supervisor are killed at once: the server dies with its supervisor, its child stays behind."""
    [port] = free_ports(1)
    launcher = launched(tmp_path, port)
    leader = leader_of(ServerRecords(tmp_path))
    launcher.kill()
    os.kill(leader, signal.SIGKILL)
    launcher.wait(20)
    assert eventually(lambda: len(session_members(leader)) == 1)
    assert reap_strays(tmp_path) == [leader]
    assert session_members(leader) == []
    assert ServerRecords(tmp_path).read() == []


def test_servers_of_a_live_launcher_and_foreign_processes_are_left_alone(tmp_path: Path) -> None:
    foreign = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        alive = identity(foreign.pid)
        assert alive is not None
        gone = alive.replace(f":{foreign.pid}:", ":4194303:")
        reused = f"{alive}0"
        records = [
            ServerRecord(launcher=alive, leader=alive, members=[], log="of a launcher that lives"),
            ServerRecord(launcher=gone, leader=reused, members=[reused], log="the pid is another process by now"),
        ]
        ServerRecords(tmp_path)._write(records)
        assert reap_strays(tmp_path) == []
        assert foreign.poll() is None
        assert ServerRecords(tmp_path).read() == records[:1]
    finally:
        end_session(foreign.pid, 5)
        foreign.wait()


def test_a_member_that_ends_while_strays_are_looked_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ServerRecord(launcher="gone:4194303:1", leader="gone:4194303:1", members=[], log="of a killed run")
    ServerRecords(tmp_path)._write([gone])
    monkeypatch.setattr("agentmill.pipelines.serving.server_process.is_alive", lambda each: each is gone.leader)
    monkeypatch.setattr(ServerRecords, "read", lambda self: [msgspec.structs.replace(gone, launcher="another")])
    assert reap_strays(tmp_path) == []


def test_each_server_is_stopped_though_stopping_another_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, stop = [], ServerProcess.stop

    def failing(server: ServerProcess) -> None:
        stop(server)
        stopped.append(server)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ServerProcess, "stop", failing)
    plans = [plan(tmp_path), plan(tmp_path)]
    with pytest.raises(OSError, match="No space"), run_servers(plans, ServerRecords(tmp_path), 20, 0):
        pass
    assert [server.is_alive() for server in stopped] == [False, False]


def full(*given: object, **fields: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["records", "log", "temporary"])
def test_a_full_device_at_the_start_is_explained_and_leaves_nothing(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    given = plan(tmp_path)
    if place == "records":
        monkeypatch.setattr(Path, "write_bytes", full)
    elif place == "log":
        monkeypatch.setattr(Path, "open", full)
    else:
        monkeypatch.setattr("agentmill.pipelines.serving.server_process.tempfile.mkdtemp", full)
    with user_error("no-space"), run_servers([given], ServerRecords(tmp_path), 20, 0):
        pass
    monkeypatch.undo()
    assert list(temporary.iterdir()) == []
    assert is_free(given.port)


def test_broken_records_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "servers.json").write_text("{half")
    assert reap_strays(tmp_path) == []


def test_stop_may_be_called_twice(tmp_path: Path) -> None:
    server = ServerProcess(plan(tmp_path), ServerRecords(tmp_path))
    server.start()
    server.stop()
    server.stop()
    assert not server.is_alive()


def test_given_endpoints_are_checked_and_nothing_is_started(tmp_path: Path) -> None:
    with FakeOpenAi(lambda body: text("a") if body["model"] in ("fake", "alias") else Reply(status=404)) as server:
        config = ModelConfig(policy="vllm", model="fake", endpoints=[server.url + "/"])
        with serve(config, tmp_path) as endpoints:
            assert [(one.base_url, one.model) for one in endpoints] == [(server.url, "fake")]
        # A name that the endpoint answers to, and does not list.
        with serve(ModelConfig(policy="openai", model="alias", endpoints=[server.url]), tmp_path) as endpoints:
            assert [one.model for one in endpoints] == ["alias"]
        assert [(body["model"], body["max_tokens"]) for body in server.requests] == [("alias", 1)]
        wrong = ModelConfig(policy="openai", model="fak", endpoints=[server.url])
        with (
            user_error("model-not-served", "'fak'", "fake"),
            serve(wrong, tmp_path),
        ):
            raise AssertionError("not served there")
    with (
        user_error("endpoint-unreachable", "endpoints"),
        serve(config, tmp_path),
    ):
        raise AssertionError("nobody there")
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ tools }}")
    with FakeOpenAi([]) as other:
        config = ModelConfig(policy="vllm", model=str(tmp_path), server=ServerConfig(port=other.port))
        with (
            user_error("port-in-use", other.port, "server.port"),
            serve(config, tmp_path / "run"),
        ):
            raise AssertionError("the port is taken")
    assert not (tmp_path / "run" / "logs").exists()


def test_ports_beyond_the_last_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ tools }}")
    config = ModelConfig(policy="vllm", model=str(tmp_path), server=ServerConfig(port=65_535, replicas=2))
    with user_error("invalid-value", "65535", "65536"), serve(config, tmp_path / "run"):
        raise AssertionError("there is no such port")


def test_policies_without_a_model_need_no_server(tmp_path: Path) -> None:
    with serve(ModelConfig(policy="expert"), tmp_path) as endpoints:
        assert endpoints == []


def test_what_an_earlier_server_said_is_not_given_for_the_reason(tmp_path: Path) -> None:
    dying = plan(tmp_path, "--die-with", "no such weights")
    dying.log.write_text("ValueError: from before\n")
    with (
        pytest.raises(ServerError, match="no such weights") as error,
        run_servers([dying], ServerRecords(tmp_path), 20, 0),
    ):
        raise AssertionError("it is not ready")
    assert "from before" not in str(error.value)
    assert dying.log.read_text().startswith("ValueError: from before\n")


@pytest.fixture
def dealt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, list[list[str]]]]:
    """The models that are served, in their order, each with the GPUs of its servers; on a machine with three GPUs."""
    served: list[tuple[str | None, list[list[str]]]] = []

    @contextmanager
    def recording(config: ModelConfig, _: Path, gpus: list[list[str]]) -> Iterator[list[Endpoint]]:
        served.append((config.display_name, gpus))
        yield []

    monkeypatch.setattr(vllm_command, "on_cpu", lambda: False)
    monkeypatch.setattr(servers, "serve", recording)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    return served


def test_models_that_are_served_together_use_different_gpus(
    tmp_path: Path, dealt: list[tuple[str | None, list[list[str]]]]
) -> None:
    pool = ModelPool(tmp_path, lambda _: None)
    one = ServerConfig(replicas=1)
    first, second, third, fourth = (ModelConfig(policy="vllm", model=name, server=one) for name in "abcd")
    pool.endpoints({"actor": first, "judge": second})
    pool.endpoints({"judge": second, "writer": third})
    pool.endpoints({"judge": second, "writer": third, "actor": first})
    with user_error("gpus-too-few", "server.replicas"):
        pool.endpoints({"judge": second, "writer": third, "actor": first, "user": fourth})
    pool.stop()
    assert dealt == [("a", [["0"]]), ("b", [["1"]]), ("c", [["0"]]), ("a", [["2"]])]


def test_a_model_with_all_gpus_gives_way_to_one_that_is_served_with_it(
    tmp_path: Path, dealt: list[tuple[str | None, list[list[str]]]]
) -> None:
    pool = ModelPool(tmp_path, lambda _: None)
    actor, judge = (ModelConfig(policy="vllm", model=name) for name in "ab")
    pool.endpoints({"actor": actor})
    pool.endpoints({"actor": actor, "judge": judge})
    pool.endpoints({"judge": judge})
    pool.endpoints({"actor": actor, "judge": judge})
    pool.stop()
    assert dealt == [
        ("a", [["0"], ["1"], ["2"]]),
        ("a", [["0"], ["2"]]),
        ("b", [["1"]]),
        ("a", [["0"], ["2"]]),
    ]
