"""The command line of a training script: ``python -m agentmill.trainers.NAME --config FILE [key=value …]``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from agentmill.schemas.config import override, read_yaml, validate
from agentmill.schemas.errors import CODE_FILE, UserError, is_interrupt, printable
from agentmill.trainers.settings import TrainSettings

S = TypeVar("S", bound=TrainSettings)


def run(train: Callable[[S], None], settings_type: type[S], name: str, argv: Sequence[str] | None) -> int:
    """Call ``train`` with the settings that ``argv`` gives. Returns 0 done, 2 a mistake to correct, 130 interrupted."""
    description = (settings_type.__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m agentmill.trainers.{name}", description=description)
    parser.add_argument("--config", required=True, help="YAML file with the settings (see schemas/training.py)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that go before those of the file")
    arguments = parser.parse_args(argv)

    def work() -> None:
        train(validate(settings_type, override(read_yaml(arguments.config), arguments.overrides), arguments.config))

    return told(work, "interrupted; the same command goes on from the last checkpoint")


def told(work: Callable[[], None], interrupted: str) -> int:
    """Do ``work``, say what stopped it, and return the exit code."""
    try:
        work()
    except UserError as error:
        say(error.labelled())
        if CODE_FILE in os.environ:
            Path(os.environ[CODE_FILE]).write_text(error.code)
        return 2
    except (Exception, KeyboardInterrupt) as error:
        if not is_interrupt(error):
            raise
        say(interrupted)
        return 130
    return 0


def leave(code: int) -> NoReturn:
    """End this process with ``code``. One of several goes without the interpreter's last steps.

    Threads of torch's process group may abort a process in these, when all it had to do is done.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def say(text: str) -> None:
    """Print ``text`` to stderr, once for all processes."""
    if os.environ.get("RANK", "0") == "0":
        print(printable(text), file=sys.stderr, flush=True)
