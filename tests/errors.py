"""What a test expects of a mistake of the user: its code, and the user's own words in its message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

E = TypeVar("E", bound=UserError)


@contextmanager
def user_error(code: str, *names: object, by: type[UserError] = UserError) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """As ``pytest.raises``, for a ``UserError`` of this code whose message holds each of ``names``: what was given."""
    with pytest.raises(by) as caught:
        yield caught
    check_refusal(caught.value, code, *names)


def check_refusal(error: UserError, code: str, *names: object) -> None:
    """Fails unless ``error`` is of this code, and its message holds each of ``names``."""
    assert (error.code, str(error)) == (ErrorCode(code), str(error))
    assert [name for name in map(str, names) if name not in str(error)] == [], str(error)


def codes(printed: str) -> list[str]:
    """The codes at the ends of printed lines, in order."""
    return [
        code for line in printed.splitlines() if (code := line.rpartition(" [")[2].removesuffix("]")) in set(ErrorCode)
    ]
