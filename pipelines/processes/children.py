"""Child processes of a run that do one job and end, such as a training. They die with their parent, even by SIGKILL."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from agentmill.pipelines.processes.supervise import supervised
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import CODE_FILE, UserError
from agentmill.schemas.extras import require

USER_MISTAKE = 2
POLL_S = 1.0


class ChildFailed(Exception):
    """A child process ended with another exit code than 0; its output went to stderr."""

    def __init__(self, module: str, code: int) -> None:
        super().__init__(f"python -m {module} ended with exit code {code}; its messages are above")
        self.code = code


def wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code of ``process``, waited for in steps: some libraries make a Ctrl-C wait for a call that blocks."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=POLL_S)


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Run ``python -m module arguments…``, a module of ``trainers``; all it prints goes to our stderr.

    It lives in a session of its own, so Ctrl-C reaches it only through us: it is stopped, and the interrupt passed on.
    Raises ``UserError`` where the extra ``train`` is missing or the module exits with 2, a mistake of the user, whose
    code it has, and ``ChildFailed`` for any other exit code than 0.
    """
    require("train")
    with (
        tempfile.TemporaryFile() as code_of,  # it has no name that could stay behind when this process is killed
        tempfile.TemporaryDirectory(prefix="agentmill-", ignore_cleanup_errors=True) as temporary,
    ):
        code_file = f"/proc/{os.getpid()}/fd/{code_of.fileno()}"
        # Else a folder of the working directory could take the place of a package.
        environment = {**os.environ, "PYTHONSAFEPATH": "1", CODE_FILE: code_file}
        command = supervised([sys.executable, "-m", module, *arguments], temporary)
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), start_new_session=True
        )
        try:
            code = wait(process)
        except BaseException:
            # The supervisor ends all that the module has started.
            process.terminate()
            process.wait()
            raise
        # The child opened the file anew, so our own position is still at its beginning.
        # Several processes of one training may each have left a code.
        mistake = ErrorCode((code_of.read().decode().split() or [ErrorCode.TRAINING_REFUSED])[0])
    if code == USER_MISTAKE:
        raise UserError(f"python -m {module} {shlex.join(arguments)} was refused; what to correct is above", mistake)
    if code != 0:
        raise ChildFailed(module, code)
