"""No attack escapes, and the ones that can be tried without harm do succeed where there is no sandbox."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from agentmill.synthesis.sandbox import Limits, Result, SandboxError, Session, backend, bubblewrap
from agentmill.synthesis.sandbox.inside import run
from tests.synthesis.sandbox.attacks.attack import SECRET, Attack
from tests.synthesis.sandbox.attacks.files import READING, WRITING
from tests.synthesis.sandbox.attacks.harness import HARNESS, NETWORK, PROTOCOL
from tests.synthesis.sandbox.attacks.processes import KERNEL, MEMORY, PROCESSES, PROCESSOR, TIME

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
"""For other processes that import what this one does."""
ATTACKS = [*READING, *WRITING, *PROCESSES, *TIME, *MEMORY, *KERNEL, *NETWORK, *PROTOCOL, *HARNESS]
NEEDS_NAMESPACES = ("thread_bomb", "memory_of_the_host")
WEAKER = [
    attack
    for attack in (*PROCESSES, *TIME, *MEMORY, *KERNEL, *NETWORK, *PROTOCOL, *HARNESS)
    if attack.name not in NEEDS_NAMESPACES
]
"""What the weaker backend stops as well."""

LIMITS = Limits(timeout_s=30.0, cpu_s=60, memory_bytes=256 * 2**20)


class Host:
    """What an attack may aim at."""

    def __init__(self, folder: Path) -> None:
        self.canary = folder / "canary"
        self.canary.write_text("alive")
        secret = folder / "secret"
        secret.write_text(SECRET)
        self.gold = ctypes.create_string_buffer(SECRET.encode())
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(folder / "s"))
        self.unix.listen()
        for server in (self.tcp, self.unix):
            server.setblocking(False)
        self.targets: dict[str, Any] = {
            "SECRET_FILE": secret,
            "CANARY": self.canary,
            "HOST_PID": os.getpid(),
            "HOST_ADDRESS": ctypes.addressof(self.gold),
            "HOST_NAME": os.uname().nodename,
            "PORT": self.tcp.getsockname()[1],
            "LISTENER": folder / "s",
            "PROJECT": Path(__file__).parent,
        }

    def is_untouched(self) -> bool:
        """Nothing was written, and nobody called."""
        return not self.hang_up() and self.canary.read_text() == "alive"

    def hang_up(self) -> int:
        """The number of callers."""
        callers = 0
        for server in (self.tcp, self.unix):
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                callers += 1
        return callers

    def close(self) -> None:
        self.tcp.close()
        self.unix.close()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTMILL_GOLD", SECRET)
        made = Host(Path(folder))
        yield made
        made.close()


@pytest.fixture(scope="module")
def session(host: Host) -> Iterator[Session]:
    made = Session(backend("bubblewrap"), LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def weaker_session(host: Host) -> Iterator[Session]:
    made = Session(backend("seccomp"), LIMITS)
    yield made
    made.close()


def tried(attack: Attack, session: Session, host: Host) -> tuple[str, Result]:
    """What came of an attack in a fresh interpreter, in words."""
    session.restart()
    result = session.run(attack.aimed(host.targets), attack.timeout_s)
    if result.ok and session.alive and attack.name == "patched_json":
        result = session.run("1")
    return f"value: {result.value!r}" if result.ok else f"{result.reason}: {result.error}", result


def told(attack: Attack) -> str:
    return attack.name


def refused(attack: Attack, session: Session, host: Host) -> None:
    """The attack came to what it must, nothing got out or was changed, and the session goes on."""
    outcome, result = tried(attack, session, host)
    assert result.value is not True
    assert re.search(attack.stopped, outcome), outcome
    assert SECRET not in f"{result.value}{result.shown}{result.output}"
    assert len(result.output) + len(result.shown) <= 2 * LIMITS.output_bytes + 20
    assert host.is_untouched()
    session.restart()
    assert session.run("1 + 1").value == 2


@pytest.mark.parametrize("attack", ATTACKS, ids=told)
def test_no_attack_escapes(attack: Attack, session: Session, host: Host) -> None:
    refused(attack, session, host)


@pytest.mark.parametrize("kind", ["bubblewrap", "seccomp"])
@pytest.mark.parametrize("attack", PROCESSOR, ids=told)
def test_processor_time_is_bounded(attack: Attack, kind: str, host: Host) -> None:
    with contextlib.closing(Session(backend(kind), msgspec.structs.replace(LIMITS, cpu_s=1))) as made:
        refused(attack, made, host)


@pytest.mark.parametrize("attack", WEAKER, ids=told)
def test_the_weaker_backend_stops_what_is_not_about_files(attack: Attack, weaker_session: Session, host: Host) -> None:
    outcome, result = tried(attack, weaker_session, host)
    assert result.value is not True
    assert re.search(attack.stopped, outcome) or "Errno 1]" in outcome, outcome
    assert host.is_untouched()


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.works_outside], ids=told)
def test_outside_it_would_have_worked(attack: Attack, host: Host) -> None:
    """So that what stops an attack is the sandbox, and not a mistake in the attack."""
    wrapper = (
        "import sys; from agentmill.synthesis.sandbox.inside import run;"
        " print(run(sys.stdin.read(), {}, 'attack') is True)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", wrapper],
        input=attack.aimed(host.targets),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **ELSEWHERE},
        check=False,
    )
    host.hang_up()
    assert done.stdout.split()[-1:] == ["True"], done.stderr[-500:]


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("secret_in_memory", f"kept = ['{SECRET}']"),
        ("secret_anywhere_on_disk", f"open('/tmp/planted', 'w').write('{SECRET}')"),
        ("inherited_descriptors", "import os; kept = os.dup(0)"),
    ],
)
def test_a_hunt_finds_what_is_planted(name: str, planted: str, session: Session, host: Host) -> None:
    """So that nothing is found because nothing is there, and not because of a mistake in the hunt."""
    hunt = next(attack for attack in ATTACKS if attack.name == name)
    session.restart()
    assert session.run(planted).ok
    assert session.run(hunt.aimed(host.targets)).value is True


def test_the_hunt_for_the_socket_of_the_keeper_finds_one_that_is_open() -> None:
    hunt = next(attack for attack in ATTACKS if attack.name == "settings_of_the_keeper")

    def keep(control: socket.socket) -> object:
        return run(hunt.code, {}, "attack")

    mine, other = socket.socketpair()
    with mine, other:
        assert keep(mine) is True
        assert other.recv(1) == b"x"


def test_the_address_that_is_aimed_at_holds_the_secret(host: Host) -> None:
    assert ctypes.string_at(host.targets["HOST_ADDRESS"], len(SECRET)) == SECRET.encode()


def test_there_are_many_attacks() -> None:
    names = [attack.name for attack in (*ATTACKS, *PROCESSOR)]
    assert len(set(names)) == len(names) >= 60
    assert sum(attack.works_outside for attack in ATTACKS) >= 20
    assert all(attack.code.strip() for attack in (*ATTACKS, *PROCESSOR))


def test_the_weaker_backend_lets_read_but_not_write(weaker_session: Session, host: Host) -> None:
    weaker_session.restart()
    secret = host.targets["SECRET_FILE"]
    assert weaker_session.run(f"open('{secret}').read()").value == SECRET  # as its documentation says
    for code in (
        f"open('{host.canary}', 'w')",
        f"open('{host.canary}', 'a')",
        f"import os; os.unlink('{host.canary}')",
        f"import os; os.truncate('{host.canary}', 0)",
        f"import os; os.rename('{host.canary}', '/tmp/x')",
        f"import os; os.chmod('{host.canary}', 0)",
        "import os; os.mkdir('/tmp/made-in-a-sandbox')",
        "import os; os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    ):
        result = weaker_session.run(code)
        assert "PermissionError: [Errno 1]" in str(result.error), code
    assert host.is_untouched()


def test_ordinary_code_with_sockets_and_threads_still_runs(session: Session) -> None:
    session.restart()
    code = """
import asyncio, socket, threading
one, other = socket.socketpair()
one.settimeout(5)
one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
other.send(b'x')
found = []
threading.Thread(target=lambda: found.append(one.recv(1))).start()
async def add(a, b):
    await asyncio.sleep(0)
    return a + await asyncio.to_thread(lambda: b)
[asyncio.run(add(1, 2)), one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), one.getsockopt(1, socket.SO_ERROR)]
"""
    assert session.run(code).value == [3, 1, 0]
    assert session.run("found == [b'x']").value is True


def test_nothing_stays_for_the_next_interpreter(session: Session) -> None:
    session.restart()
    session.run("import builtins, os, sys; builtins.sum = lambda x: 42; left = 1; os.environ['LEFT'] = '1'")
    session.run(
        "os.mkdir('/tmp/a'); open('/tmp/a/b', 'w').write('x'); os.chmod('/tmp/a', 0); os.symlink('/', '/tmp/l')"
    )
    session.run("sys.modules['json'] = None; sys.path.insert(0, '/tmp')")
    session.restart()
    code = (
        "import os, sys, json; (sum([1]), 'left' in globals(), os.listdir('/tmp'), 'LEFT' in os.environ, sys.path[0])"
    )
    assert session.run(code).value == [1, False, [], False, "/python/lib/python311.zip".replace("311", _version())]


def test_a_thread_does_not_outlive_its_interpreter(session: Session) -> None:
    session.restart()
    session.run("""
import threading, time
def write():
    while True:
        time.sleep(0.01)
        open('/tmp/alive', 'w').close()
threading.Thread(target=write, daemon=True).start()
""")
    session.restart()
    assert session.run("import os, time; time.sleep(0.1); os.listdir('/tmp')").value == []


def test_files_that_cannot_be_removed_cost_the_sandbox_only(session: Session) -> None:
    session.restart()
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('d' * 10)\n    os.chdir('d' * 10)\nTrue"
    assert session.run(deep).value is True
    session.restart()
    assert session.run("import os; os.listdir('/tmp')").value == []


def test_two_sessions_do_not_see_each_other(session: Session) -> None:
    session.restart()
    session.run("open('/tmp/mine', 'w').close()")
    other = Session(backend("bubblewrap"), LIMITS)
    try:
        assert other.run("import os; os.listdir('/tmp')").value == []
        assert other.run("import os; os.getpid()").value == 2
    finally:
        other.close()


@pytest.mark.parametrize(
    "lock",
    [
        "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "fcntl.fcntl(file, 37, struct.pack('hhqqi', fcntl.F_RDLCK, 0, 0, 0, 0))",
        "fcntl.fcntl(file, fcntl.F_GETLK, struct.pack('hhqqi', fcntl.F_RDLCK, 0, 0, 0, 0))",
        "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    ],
)
def test_two_sessions_cannot_tell_each_other_anything_by_locks(lock: str, session: Session) -> None:
    """Files of the host that sandboxes share could be locked in one and tried in the other."""
    code = f"import fcntl, struct; file = open('/python/bin/python3', 'rb'); {lock}"
    other = Session(backend("bubblewrap"), LIMITS)
    try:
        for each in (session, other):
            each.restart()
            assert "PermissionError: [Errno 1]" in str(each.run(code).error)
    finally:
        other.close()


def test_two_sessions_cannot_tell_each_other_anything_by_dev_null(session: Session) -> None:
    session.restart()
    other = Session(backend("bubblewrap"), LIMITS)
    look = "import os; os.stat('/dev/null').st_mtime_ns"
    before = Path(os.devnull).stat()
    try:
        seen = other.run(look).value
        for target in ("'/dev/null'", "0", "1", "2"):
            told = session.run(f"import os; os.utime({target})")  # to now, which a file's writers may do
            assert "[Errno 30] Read-only file system" in str(told.error)
        assert other.run(look).value == seen
        assert session.run("open('/dev/null', 'w').write('x'), open('/dev/null').read()").value == [1, ""]
    finally:
        other.close()
    after = Path(os.devnull).stat()
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)


def test_a_host_that_is_killed_during_a_start_leaves_nothing(tmp_path: Path) -> None:
    inside = tmp_path / "inside.py"  # by which its processes are known
    inside.write_text(bubblewrap.INSIDE.read_text())
    code = (
        "import os\nfrom pathlib import Path\nfrom agentmill.synthesis.sandbox import Session, backend, bubblewrap\n"
        f"bubblewrap.INSIDE = Path({str(inside)!r})\n"
        "bubblewrap._child = lambda info: os.kill(os.getpid(), 9)\n"
        "Session(backend('bubblewrap'))"
    )
    environment = {**os.environ, **ELSEWHERE}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == -9
    left = [each for each in psutil.process_iter() if str(inside) in _command_line(each)]
    alive = psutil.wait_procs(left, timeout=5)[1]
    for each in alive:
        each.kill()
    assert alive == []


def test_a_start_that_is_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))
    started: list[psutil.Process] = []

    def interrupted(info: int) -> int:
        started.extend(set(psutil.Process().children(recursive=True)) - before)
        raise KeyboardInterrupt

    monkeypatch.setattr(bubblewrap, "_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Session(backend("bubblewrap"), LIMITS)
    assert started
    assert psutil.wait_procs(started, timeout=5)[1] == []


def test_a_host_with_many_open_files_starts_one_too() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1_200:
        pytest.skip("no more than 1023 files can be opened here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_200), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        opened = [os.dup(1)]
        stack.callback(lambda: [os.close(each) for each in opened])
        while opened[-1] < 1_024:
            opened.append(os.dup(1))
        made = Session(backend("bubblewrap"), LIMITS)
        stack.callback(made.close)
        assert made.run("1 + 1").value == 2


def test_all_processes_end_with_the_session() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    made = Session(backend("bubblewrap"), LIMITS)
    processes = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    made.run("while True: pass", timeout_s=0.05)
    made.restart()
    assert len(processes) == 3
    made.close()
    assert psutil.wait_procs(processes, timeout=5)[1] == []
    with pytest.raises(SandboxError, match="closed"):
        made.run("1")


def test_a_sandbox_ends_with_the_process_that_made_it() -> None:
    code = (
        "import os, psutil\nfrom agentmill.synthesis.sandbox import Session, backend\n"
        "session = Session(backend('bubblewrap'))\n"
        "print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, **ELSEWHERE}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    left = [process for pid in done.stdout.split() for process in _living(int(pid))]
    assert done.returncode == -9
    assert len(done.stdout.split()) == 3
    assert psutil.wait_procs(left, timeout=5)[1] == []


def _living(pid: int) -> list[psutil.Process]:
    """The process with that id, if there is one; it may end at any moment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [psutil.Process(pid)]
    return []


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _version() -> str:
    return f"{sys.version_info[0]}{sys.version_info[1]}"
