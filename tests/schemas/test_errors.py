"""The codes of mistakes: each is used, they travel between processes, and what is printed can be read back."""

from __future__ import annotations

import pickle
import re

import pytest

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, parse_labelled
from agentmill.synthesis.sandbox import SandboxUnavailable
from tests.pages import ROOT

ROOMS = ("schemas", "synthesis", "pipelines", "trainers")


def test_every_code_is_used_and_every_used_code_is_known() -> None:
    sources = (path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    used = {name for source in sources for name in re.findall(r"\bErrorCode\.([A-Z0-9_]+)", source)}
    assert used == set(ErrorCode.__members__)


def test_codes_are_lower_case_words_and_sentences_end_with_a_stop() -> None:
    for name, code in ErrorCode.__members__.items():
        assert code == name.lower().replace("_", "-")
        assert re.fullmatch(r"[A-Z`].*\.", code.sentence), code


@pytest.mark.parametrize("kind", [UserError, SandboxUnavailable])
def test_an_error_keeps_its_code_between_processes(kind: type[UserError]) -> None:
    error = pickle.loads(pickle.dumps(kind("a full disk\nfree some", ErrorCode.NO_SPACE)))
    assert (type(error), str(error), error.code) == (kind, "a full disk\nfree some", ErrorCode.NO_SPACE)
    assert error.code is ErrorCode.NO_SPACE


def test_the_code_ends_the_first_line() -> None:
    assert UserError("there is no x", ErrorCode.TABLE_MISSING).labelled() == "there is no x [table-missing]"
    assert UserError("a full disk\nfree some", ErrorCode.NO_SPACE).labelled() == "a full disk [no-space]\nfree some"


@pytest.mark.parametrize("message", ["there is no x", "a full disk\nfree some"])
def test_what_was_printed_is_read_back(message: str) -> None:
    printed = f"downloading [x]\n{UserError(message, ErrorCode.NO_SPACE).labelled()}\n"
    error = parse_labelled(printed, ErrorCode.DOWNLOAD_FAILED)
    assert (str(error), error.code) == (message, ErrorCode.NO_SPACE)


def test_other_words_in_brackets_are_no_code() -> None:
    error = parse_labelled("Traceback\n  at x\nValueError: a list [no-such-code]\n", ErrorCode.DOWNLOAD_FAILED)
    assert (str(error), error.code) == ("  at x\nValueError: a list [no-such-code]", ErrorCode.DOWNLOAD_FAILED)
