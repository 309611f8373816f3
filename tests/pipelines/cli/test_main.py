"""The command line itself: help, exit codes, manners."""

from __future__ import annotations

import errno
import importlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import click
import pytest

from agentmill.pipelines.cli import main as module
from agentmill.pipelines.cli.main import COMMANDS, LazyGroup, agentmill, invoke
from agentmill.pipelines.engine.execute import StageFailed
from tests.errors import shows

HEAVY = ("apache_beam", "torch", "transformers", "datasets", "polars", "openai", "pyarrow", "pydantic", "numpy", "rich")
HELP = f"""
import sys
from agentmill.pipelines.cli.main import invoke
code = invoke(["--help"])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    took = time.monotonic() - begun
    assert done.stderr == "[]\n"
    assert all(name in done.stdout for name in COMMANDS)
    assert took < 2.0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, line = COMMANDS[name]
    loaded = getattr(importlib.import_module(path.partition(":")[0]), path.partition(":")[2])
    assert isinstance(loaded, click.Command)
    assert line.endswith(".")
    assert invoke([name, "--help"]) == 0
    assert f"Usage: agentmill {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out.startswith("agentmill, version ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "unknown command 'rnu'; known: run, .*Did you mean 'run'?"),
        (["run"], "Missing argument 'RECIPE'"),
        (["run", "a.yaml", "--relpace"], "No such option.*--relpace.*Did you mean"),
        (["rollout"], "Missing option '--config'"),
        (["inspect", "nowhere"], "agentmill: there is no table at nowhere"),
        (["list", "operator"], "unknown kind 'operator'.*Did you mean 'operators'?"),
        (["check", "environments", "pdl"], "unknown environment 'pdl'.*Did you mean 'pddl'?"),
    ],
)
def test_mistakes_of_the_user_exit_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(message, printed.err.replace("\n", " ")), printed.err


def broken(work: Callable[[], object]) -> LazyGroup:
    """A command line whose only command does ``work`` and fails in a way that nobody foresaw."""

    @click.command()
    def fail() -> None:
        work()
        raise RuntimeError("the gears are stuck")

    group = LazyGroup(name="agentmill", lazy={"fail": ("x:y", "Fail.")})
    group.get_command = lambda ctx, cmd_name: fail  # type: ignore[method-assign]
    return group


def test_a_failure_exits_with_1_in_one_line_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "agentmill", broken(int))
    assert invoke(["fail"]) == 1
    assert capsys.readouterr().err == "agentmill: RuntimeError: the gears are stuck (agentmill --debug … shows where)\n"
    assert invoke(["fail", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def full_device() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/data/x")


def test_a_full_device_is_a_matter_of_the_user_wherever_it_is_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "agentmill", broken(full_device))
    assert invoke(["fail"]) == 2
    assert shows(capsys.readouterr().err, "no-space", "/data/x", "free some")


def interrupted_within_a_lock() -> None:
    """An interrupt between taking a lock and noting it: the release fails, and hides the interrupt."""
    try:
        raise KeyboardInterrupt
    finally:
        threading.Lock().release()


def given_up_because_of_an_interrupt() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise StageFailed("a worker was killed") from None


@pytest.mark.parametrize(
    ("work", "code", "line"),
    [
        (interrupted_within_a_lock, 130, "interrupted; what was finished is kept. Go on with: agentmill fail"),
        (given_up_because_of_an_interrupt, 1, "StageFailed: a worker was killed (agentmill --debug … shows where)"),
    ],
)
def test_an_interrupt_is_one_whatever_it_came_out_as(
    work: Callable[[], object],
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "agentmill", broken(work))
    assert (invoke(["fail"]), capsys.readouterr().err) == (code, f"agentmill: {line}\n")


def test_a_command_that_begins_anew_does_not_promise_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "agentmill", broken(interrupted_within_a_lock))
    monkeypatch.setattr(module, "KEEPING_NOTHING", ("fail",))
    assert invoke(["fail"]) == 130
    assert capsys.readouterr().err == "agentmill: interrupted. Begin anew with: agentmill fail\n"


def test_commands_that_begin_anew_are_commands() -> None:
    assert {*module.KEEPING_NOTHING} <= {*agentmill.list_commands(click.Context(agentmill))}


def test_commands_are_listed_in_the_order_of_work() -> None:
    context = click.Context(agentmill)
    assert agentmill.list_commands(context)[:2] == ["run", "synthesize"]


def test_a_connection_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It raises what a reader of stdout that goes away does, and is no such thing."""

    def cut() -> None:
        raise BrokenPipeError("the server hung up")

    monkeypatch.setattr(module, "agentmill", broken(cut))
    assert invoke(["fail"]) == 1
    assert "BrokenPipeError: the server hung up" in capfd.readouterr().err
