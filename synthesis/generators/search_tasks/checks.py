"""Whether a question about a corpus gives its own answer away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from agentmill.schemas.records.task import AdmissionCheck, Task
from agentmill.synthesis.environments.search.environment import Goal
from agentmill.synthesis.verifiers.answer_match import normalise_text

ANSWER_SHOWN = "answer_shown"


def search_task_checks(task: Task) -> Iterator[AdmissionCheck]:
    """The check ``answer_shown`` of a task whose goal is known to be one."""
    answers = [str(each) for each in msgspec.convert(task.goal, Goal).answers]
    shown = [answer for answer in answers if shows_answer(task.instruction, [answer])]
    detail = f"the instruction has the answer {shown[0]!r}" if shown else ""
    yield AdmissionCheck(name=ANSWER_SHOWN, passed=not shown, detail=detail)


def shows_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether a text has one of the answers, compared without case, punctuation and articles."""
    words = f" {words_of(text)} "
    return any(f" {words_of(answer)} " in words for answer in answers)


def words_of(text: str) -> str:
    """A text without case, punctuation and articles; questions quote texts, and no quotation mark is part of a word."""
    return normalise_text(re.sub("[“”]", " ", text))


def shows_name(text: str, names: Sequence[str]) -> bool:
    """Whether a text has a word, of four letters or more with a capital, of one of the names, or a whole name."""
    parts = [part for name in names for part in name.split() if len(part) > 3 and part[0].isupper()]
    return shows_answer(text, [*names, *parts])
