"""The memory of all sandboxes together: what is reserved, who waits, who gets none."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentmill.schemas.machine import machine_bytes
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.interpreter.environment import InterpreterEnvironment
from agentmill.synthesis.environments.interpreter.examples import LONGEST, WORDS
from agentmill.synthesis.rollouts.step import carry_out
from agentmill.synthesis.sandbox import Limits, Pool, SandboxFull, Session, backend
from agentmill.synthesis.sandbox.memory import KEEPER_BYTES, Account, Budget, total_from
from tests.errors import user_error

MIB = 2**20
LIMITS = Limits(memory_bytes=1_000 * MIB, files_bytes=MIB)
"""A session takes 57 MiB at rest, 1,025 MiB while its code runs."""
TAKE = "data = bytearray({} * 2**20)\nlen(data)"  # nothing is written to it: the machine may have less


@contextlib.contextmanager
def opened(budget: Budget, n: int, limits: Limits = LIMITS) -> Iterator[list[Session]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Session(backend(), limits, budget))) for _ in range(n)]


def address_space(session: Session) -> int:
    """Bytes of the interpreter, as the kernel counts them."""
    keeper = session._accounts()[0].keeper
    (pid,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_sessions_together_never_take_more_than_the_total() -> None:
    budget = Budget(2_500 * MIB, wait_s=0.1)
    with opened(budget, 4) as sessions:
        fixed = len(sessions) * (KEEPER_BYTES + LIMITS.files_bytes)
        for session in sessions[:2]:
            assert session.run(TAKE.format(700)).value == 700 * MIB
            assert sum(map(address_space, sessions)) + fixed <= budget.reserved_bytes <= budget.total_bytes
        for session in sessions[2:]:
            with pytest.raises(
                SandboxFull, match=r"of this process hold [\d,]+ MiB of 2,500 MiB; set AGENTMILL_SANDBOX"
            ):
                session.run(TAKE.format(700))
        assert sessions[3].alive
    assert budget.reserved_bytes == 0


def test_many_sessions_fit_where_few_take_much() -> None:
    budget = Budget(1_600 * MIB, wait_s=0.1)
    with opened(budget, 6) as sessions:
        for _ in range(2):
            for number, session in enumerate(sessions):
                assert session.run(f"len(bytes(800 * 2**20)) + {number}").value == 800 * MIB + number
    assert 6 * (LIMITS.memory_bytes + KEEPER_BYTES) > budget.total_bytes


def test_a_call_waits_for_memory_and_its_timeout_does_not_run_meanwhile() -> None:
    budget = Budget(2_000 * MIB, wait_s=20.0)
    with opened(budget, 3) as (first, second, third):
        first.run(TAKE.format(500))
        second.run(TAKE.format(500))
        values: list[object] = []
        waiting = threading.Thread(target=lambda: values.append(third.run("1 + 1", timeout_s=0.5).value))
        waiting.start()
        waiting.join(0.7)
        assert (waiting.is_alive(), values) == (True, [])
        first.close()
        waiting.join(10)
        assert values == [2]


def test_a_thread_takes_nothing_while_its_session_rests_and_the_next_call_may() -> None:
    budget = Budget(1_500 * MIB, wait_s=5.0)
    grab = """
import threading, time
go, failed = threading.Event(), []
def grab():
    go.wait(10)
    time.sleep(0.3)
    try:
        kept = bytearray(600 * 2**20)
    except MemoryError:
        failed.append(True)
grabbing = threading.Thread(target=grab)
grabbing.start()
"""
    with opened(budget, 2) as (resting, other):
        assert resting.run(grab).ok
        assert resting.run("go.set()").ok
        assert other.run("1 + 1").value == 2  # which takes what the first has reserved and does not hold
        assert other.run("import time; time.sleep(0.6)").ok
        assert resting.run("grabbing.join(); failed").value == [True]
        assert resting.run(TAKE.format(600)).value == 600 * MIB


def test_idle_sandboxes_give_way() -> None:
    budget = Budget(1_150 * MIB, wait_s=5.0)
    lender = Pool(backend(), LIMITS, budget=budget)
    taken = [lender.take() for _ in range(3)]
    for session in taken:
        lender.give(session)
    other = Pool(backend(), LIMITS, budget=budget)
    with other.session() as session:
        assert session.run("1 + 1").value == 2
    assert budget.reserved_bytes <= budget.total_bytes
    lender.close()
    other.close()
    assert budget.reserved_bytes == 0


def test_a_total_that_no_session_fits_in_ends_the_run() -> None:
    budget = Budget(100 * MIB)
    with user_error("memory-too-small", "100 MiB", "1,025 MiB", "AGENTMILL_SAN"):
        Session(backend(), LIMITS, budget)
    assert budget.reserved_bytes == 0


def test_an_interpreter_that_died_or_was_replaced_gives_its_memory_back() -> None:
    budget = Budget(1_750 * MIB, wait_s=0.1)
    with opened(budget, 2) as (one, other):
        assert one.run(TAKE.format(600)).ok
        assert other.run(TAKE.format(800)).ok
        with pytest.raises(SandboxFull):
            one.run("1")
        other.restart()
        assert one.run("len(data)").value == 600 * MIB
        one.run("import os; os._exit(0)")
        assert other.run(TAKE.format(800)).value == 800 * MIB


def test_calls_within_a_call_need_no_second_reservation() -> None:
    budget = Budget(2_200 * MIB, wait_s=0.1)
    first, second = budget.open(LIMITS), budget.open(LIMITS)
    with budget.running([first, second]), budget.running([second]):
        assert budget.reserved_bytes == first.full + second.full
    third = budget.open(LIMITS)
    with user_error("memory-too-small", "3,075 MiB"), budget.running([first, second, third]):
        pass
    for account in (first, second, third, Account(LIMITS)):
        budget.close(account)
    assert budget.reserved_bytes == 0


def test_an_episode_without_memory_is_dropped_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(500 * MIB, wait_s=0.1)
    pools = Pool(backend(), Limits(memory_bytes=256 * MIB, files_bytes=MIB), budget=budget)
    monkeypatch.setattr(
        "agentmill.synthesis.environments.interpreter.environment.pool", lambda limits, purpose="": pools
    )
    first, second = InterpreterEnvironment(WORDS), InterpreterEnvironment(WORDS)
    take = ApiAction(function="python", kwargs={"code": TAKE.format(200)})
    with contextlib.closing(first), contextlib.closing(second):
        first.reset(LONGEST, 0)
        second.reset(LONGEST, 0)
        assert not carry_out(first, take).error
        with pytest.raises(EnvError, match="SandboxFull: no memory for code in a sandbox became free"):
            carry_out(second, take)
        second.close()
        assert not carry_out(first, take).error
    pools.close()


def test_a_fork_has_the_whole_total() -> None:
    budget = Budget(1_200 * MIB)
    account = budget.open(LIMITS)
    fork = os.fork()
    if fork == 0:
        os._exit(0 if budget.reserved_bytes == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert budget.reserved_bytes == account.at_rest


@pytest.mark.parametrize(
    ("memory", "processes", "total"),
    [("8GiB", None, 8 * 2**30), ("512 MiB", "2", 256 * MIB), ("1000000", "", 1_000_000), ("1GiB", "junk", 2**30)],
)
def test_the_total_is_a_setting_that_worker_processes_share(memory: str, processes: str | None, total: int) -> None:
    assert total_from(memory, processes) == total


def test_half_of_the_machine_is_the_default() -> None:
    assert total_from(None, None) == machine_bytes() // 2
    assert total_from("", "4") == machine_bytes() // 2 // 4


@pytest.mark.parametrize("memory", ["many", "0", "-1GiB"])
def test_a_total_that_is_no_size_is_refused(memory: str) -> None:
    with user_error("value-malformed", "AGENTMILL_SANDBOX_MEMORY", memory, "0"):
        total_from(memory, None)


def test_the_limits_of_control_groups_count(tmp_path: Path) -> None:
    groups, mounted = tmp_path / "cgroup", tmp_path / "fs"
    (mounted / "job" / "step").mkdir(parents=True)
    (mounted / "job" / "memory.max").write_text("1073741824\n")
    (mounted / "job" / "step" / "memory.max").write_text("max\n")
    groups.write_text("0::/job/step\n")
    assert machine_bytes(groups, mounted) == 2**30
    (mounted / "memory" / "job").mkdir(parents=True)
    (mounted / "memory" / "job" / "memory.limit_in_bytes").write_text("536870912\n")
    groups.write_text("4:cpu,memory:/job\n0::/\n")
    assert machine_bytes(groups, mounted) == 2**29
    assert machine_bytes(tmp_path / "none", mounted) > 2**29
