"""The command line: ``agentmill COMMAND …``.

Exit codes: 0 done; 1 the run failed or reached a limit, what was checked is broken, or nobody reads what is printed; 2
a mistake of the user, reported in one or two lines; 130 interrupted, or 143 by SIGTERM. Results go to stdout,
everything else to stderr. Nothing heavy is imported here: each command imports what it needs when it is called.
"""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import select
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import (
    LimitReached,
    NothingUsed,
    UserError,
    ignored_interrupts_repeated,
    is_interrupt,
    near_match,
    printable,
)
from agentmill.schemas.extras import missing_modules_explained


class LazyGroup(click.Group):
    """Commands as ``name -> ("package.module:attribute", one line of help)``; the line is in the group's help."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names in the order they were given: the order of work, not of the alphabet."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.lazy[cmd_name][0]} is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest name for one that is unknown."""
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            known = ", ".join(self.lazy)
            ctx.fail(f"unknown command {args[0]!r}; known: {known}.{near_match(args[0], self.lazy)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in self.lazy.items()])


FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
TERMINATED = 143
EXIT_S = 5.0
EXIT_CODES = f"""\b
Exit codes:
  {0:<5}done
  {FAILED:<5}the run failed or reached a limit, or what was checked is broken
  {USER_MISTAKE:<5}a mistake in the input; the message names what to correct
  {INTERRUPTED:<5}interrupted; the message has the command that continues
  {TERMINATED:<5}the same, ended by SIGTERM"""

COMMANDS = {
    "run": (
        "agentmill.pipelines.cli.run:run",
        "Run a recipe: a list of steps in one YAML file; it resumes where it stopped.",
    ),
    "synthesize": ("agentmill.pipelines.cli.stage:synthesize", "Make environments or tasks: one step of a recipe."),
    "rollout": ("agentmill.pipelines.cli.stage:rollout", "Make trajectories: one step of a recipe."),
    "verify": ("agentmill.pipelines.cli.stage:verify", "Judge trajectories: one step of a recipe."),
    "normalize": (
        "agentmill.pipelines.cli.stage:normalize",
        "Read trajectories from files in a foreign format: one step.",
    ),
    "curate": ("agentmill.pipelines.cli.stage:curate", "Select trajectories: one step of a recipe."),
    "export": (
        "agentmill.pipelines.cli.export:export",
        "Write a table of trajectories as training rows or in a foreign format.",
    ),
    "train": ("agentmill.pipelines.cli.train:train", "Train a model on exported rows."),
    "merge": ("agentmill.pipelines.cli.merge:merge", "Write a whole model from an adapter."),
    "evaluate": ("agentmill.pipelines.cli.stage:evaluate", "Compare models on held-out tasks and environments."),
    "publish": (
        "agentmill.pipelines.cli.publish:publish",
        "Publish a run, a table or a tuned model on the Hugging Face Hub.",
    ),
    "inspect": ("agentmill.pipelines.cli.inspect:inspect", "Show a table: counts, schema, histograms, sample rows."),
    "view": ("agentmill.pipelines.cli.view:view", "Browse trajectories, pairs and search trees in a web browser."),
    "report": (
        "agentmill.pipelines.cli.report:report",
        "Sum up a run on one page: counts, success, models compared, costs.",
    ),
    "plan": (
        "agentmill.pipelines.cli.recipes:plan",
        "Show what a recipe may take at most: episodes, calls, tokens, dollars.",
    ),
    "show": ("agentmill.pipelines.cli.recipes:show", "Show a recipe in its long form."),
    "diff": ("agentmill.pipelines.cli.recipes:diff", "Show how two recipes differ, step by step."),
    "new": ("agentmill.pipelines.cli.recipes:new", "Write a recipe to start from."),
    "list": ("agentmill.pipelines.cli.list:list_", "List what can be named in a recipe."),
    "check": ("agentmill.pipelines.cli.check:check", "Check a run or a table, or plug-ins against their contract."),
    "chaos": (
        "agentmill.pipelines.cli.chaos:chaos",
        "Try faults on a recipe: kills, pauses, a full disk; each run must end well.",
    ),
    "doctor": ("agentmill.pipelines.cli.doctor:doctor", "Look at what is installed, GPU, sandbox, disk and ports."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agentmill")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; allowed anywhere.")
def agentmill() -> None:
    """Makes training data for language-model agents, and agents out of that data.

    Start with:  agentmill run configs/quickstart.yaml
    """


class PrintableFormatter(logging.Formatter):
    """Warnings of libraries and of our own, with nothing in them that acts on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record."""
        return printable(super().format(record))


def main() -> NoReturn:
    """The console entry point."""
    signals: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        interrupt(frame)

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in `agentmill … &` of a script: it is asked for by kill
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Closed streams, as in `agentmill … >&-`, are None.
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe of another encoding must not end a command for one character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
    with ignored_interrupts_repeated():
        code = invoke(sys.argv[1:])
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C, while all is being torn down, ends it at once
    code = TERMINATED if signals and code == INTERRUPTED else code
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the outcome is decided, and Python gives up handlers as it exits
    leave_soon(code)
    sys.exit(code)


def leave_soon(code: int) -> None:
    """End this process in ``EXIT_S`` at the latest: Python waits for threads, and one that was interrupted may hang."""
    timer = threading.Timer(EXIT_S, os._exit, [code])
    timer.daemon = True
    timer.start()


FULL = (errno.ENOSPC, errno.EDQUOT)
"""The device is full, or the user's share of it is."""


KEEPING_NOTHING = ("check", "diff", "export", "inspect", "merge", "plan", "report", "view")
"""Commands that begin anew after an interrupt."""


def invoke(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    debug = "--debug" in arguments
    try:
        with missing_modules_explained():
            # Else click prints errors itself and exits with codes of its own.
            outcome = agentmill.main(
                [each for each in arguments if each != "--debug"], prog_name="agentmill", standalone_mode=False
            )
    except click.ClickException as error:
        return refused(error)
    except UserError as error:
        return report(error, error.labelled(), USER_MISTAKE, debug)
    except NothingUsed as error:
        return report(error, str(error), FAILED, debug)
    except LimitReached as error:
        resume = shlex.join(["agentmill", *arguments])
        return report(error, f"{error}\n{error.advice} and go on with: {resume}", FAILED, debug)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the outermost boundary: any failure becomes one line
        # That of a connection is a failure like any other.
        if isinstance(error, BrokenPipeError) and silenced():
            return FAILED
        if is_interrupt(error) or isinstance(error, click.Abort):
            command = next((each for each in arguments if not each.startswith("-")), "")
            kept = "" if command in KEEPING_NOTHING else "; what was finished is kept"
            resume = f"{'Go on' if kept else 'Begin anew'} with: {shlex.join(['agentmill', *arguments])}"
            return report(error, f"interrupted{kept}. {resume}", INTERRUPTED, debug)
        if isinstance(error, OSError) and error.errno in FULL:
            place = f" for {error.filename}" if error.filename else ""
            full = UserError(
                f"no space left on the device{place}: free some and run the same command", ErrorCode.NO_SPACE
            )
            return report(error, full.labelled(), USER_MISTAKE, debug)
        hint = "" if debug else " (agentmill --debug … shows where)"
        return report(error, f"{type(error).__name__}: {error}{hint}", FAILED, debug)
    return outcome if isinstance(outcome, int) else 0


def report(error: BaseException, message: str, code: int, debug: bool) -> int:
    """Say on stderr what went wrong, with a traceback if asked for, and return ``code``."""
    if debug:
        click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
    click.echo(printable(f"agentmill: {message}"), err=True)
    return code


def refused(error: click.ClickException) -> int:
    """Show on stderr, as click does it, what is wrong with the arguments; they may hold any file name."""
    shown = io.StringIO()
    error.show(shown)
    click.echo(printable(shown.getvalue()), err=True, nl=False)
    return USER_MISTAKE


def silenced() -> bool:
    """Whether stdout or stderr is a pipe that nobody reads any more; what is still said to it then goes nowhere."""
    gone = [stream.fileno() for stream in (sys.stdout, sys.stderr) if is_closed(stream.fileno())]
    for descriptor in gone:
        # Python flushes both streams as it exits, which would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return bool(gone)


def is_closed(descriptor: int) -> bool:
    """Whether a descriptor is the end of a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def interrupt(frame: FrameType | None) -> NoReturn:
    """Do as on Ctrl-C, even where that is ignored, so that workers, servers and child processes are stopped."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    raise KeyboardInterrupt
