"""Reading a text file that a user names."""

from __future__ import annotations

from pathlib import Path

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match


def read_text(path: Path, called: str) -> str:
    """The text of a file. Raises ``UserError`` for one that cannot be read, naming what it is ``called``."""
    try:
        # Editors on Windows put a byte order mark before the text.
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        siblings = [entry.name for entry in path.parent.glob("*") if entry.is_file()]
        raise UserError(
            f"there is no {called} {path}.{near_match(path.name, siblings)}", ErrorCode.NO_SUCH_FILE
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"the {called} {path} is no UTF-8 text (byte {error.start})", ErrorCode.NOT_UTF8) from None
    except OSError as error:
        raise UserError(f"the {called} {path} cannot be read: {error.strerror}", ErrorCode.NOT_READABLE) from None
