"""What a test expects of a mistake of the user: its code, and the user's own words in its message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError


@contextmanager
def user_error(code: str, *names: object, by: type[UserError] = UserError) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """As ``pytest.raises``, for a ``UserError`` of this code whose message holds each of ``names``: what was given."""
    with pytest.raises(by) as caught:
        yield caught
    error = caught.value
    assert error.code == ErrorCode(code), error.labelled()
    missing = [name for name in map(str, names) if name not in str(error)]
    assert not missing, f"{missing} not in {error}"


def shows(printed: str, code: str, *names: object) -> bool:
    """Whether a command has printed a mistake of this code and each of ``names``."""
    return ErrorCode(code) in codes(printed) and all(str(name) in printed for name in names)


def codes(printed: str) -> list[str]:
    """The codes at the ends of printed lines, in order."""
    return [
        code for line in printed.splitlines() if (code := line.rpartition(" [")[2].removesuffix("]")) in set(ErrorCode)
    ]
