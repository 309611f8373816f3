"""Models that others made: with code of their own, or with damaged files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError


@contextmanager
def load_errors(folder: Path) -> Iterator[None]:
    """Raises ``UserError`` for whatever a library says of the files of the model in ``folder``.

    A model with code of its own that may not be run (``trust_remote_code``) is refused in one line.
    """
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, for a GPU
            raise
        if "trust_remote_code" in str(error):
            raise UserError(
                f"the model {folder} needs code of its own; read it, then set trust_remote_code, or take another model",
                ErrorCode.MAY_RUN_CODE,
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the model {folder} cannot be loaded ({type(error).__name__}: {reason})\n"
            "its files are damaged, incomplete or of a kind that transformers does not know here:"
            " copy the folder again",
            ErrorCode.MODEL_UNREADABLE,
        ) from error
