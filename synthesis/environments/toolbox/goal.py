"""The goal of a toolbox task, and how far a state meets it.

Kept in ``task.goal``. The state is compared with each of the ``states`` that are accepted, as differences from the
start, so that nothing else may have changed; the answer must hold every value that was asked for, in that order, and
not a list of guesses; what the user alone knew must have been asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from agentmill.synthesis.environments.environment import Check
from agentmill.synthesis.environments.toolbox.changes import Changes

MAX_OTHER_NUMBERS = 2
"""How many numbers besides those asked for and those of the instruction an answer may hold."""

LEAST_OTHER_NUMBER = 10
"""Smaller ones are none of these: they are what a count is guessed to be."""

_FINISHED = "finished"
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value that the final answer must hold. Of ``others``, its rivals, the answer may hold none."""

    value: int | str
    others: tuple[str, ...] = ()


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``states`` are alternatives; ``forbidden`` are tools not to be used, ``asked`` what must be asked for.

    ``user`` is the whole request where a person tells it, in place of the tool ``ask_user``: the agent of such a task
    hears of it in words only. ``decline`` is the reason with which the agent must decline, in place of an answer.
    """

    states: tuple[Changes, ...] = (Changes(),)
    answers: tuple[Answer, ...] = ()
    forbidden: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    user: str = ""
    decline: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What an episode came to: ``answer`` is ``None`` until it is finished, ``declined`` the reason of who declined."""

    changes: Changes
    answer: str | None
    violations: Sequence[str]
    asked: Sequence[str]
    declined: str = ""


def judge(goal: Goal, outcome: Outcome, instruction: str) -> Check:
    """``score`` is the share of what was to be done, counting what should not have been done among it, but not that
    the episode was ended, which is no progress; 0 with a violation of a rule. Evidence names what is missing and what
    is too much."""
    wanted, done = min(
        ((_wanted(goal, state), _done(goal, state, outcome, instruction)) for state in goal.states),
        # Of several accepted states the one that is nearest, or a right solution would be compared with another's
        # facts.
        key=lambda pair: len(pair[0] ^ pair[1]),
    )
    missing, extra = sorted(wanted - done), sorted(done - wanted)
    violations = sorted(set(outcome.violations))
    counted = (wanted | done) - {_FINISHED} or wanted
    score = 0.0 if violations else len(counted & wanted & done) / len(counted)
    evidence = {"missing": missing, "unwanted": extra, "violations": violations}
    return Check(passed=not (missing or extra or violations), score=score, evidence=evidence)


def tells(answer: str, wanted: Answer, instruction: str, other_answers: Iterable[Answer] = ()) -> bool:
    """Whether ``answer`` holds a value, and is no list of guesses. ``other_answers`` are the other values asked for."""
    asked = [wanted, *other_answers]
    if isinstance(wanted.value, str):
        allowed = [instruction, *(str(each.value) for each in asked)]
        rivals = [other for other in wanted.others if not any(_mentions(text, other) for text in allowed)]
        return _mentions(answer, wanted.value) and not any(_mentions(answer, other) for other in rivals)
    known = {
        *numbers(instruction),
        *_counts(instruction),
        *(float(each.value) for each in asked if not isinstance(each.value, str)),
    }
    texts = " ".join(each.value for each in asked if isinstance(each.value, str))
    stated = numbers(answer) | _counts(answer)
    others = stated - known - numbers(texts) - ({1.0} - numbers(answer))  # "one" is not always a number
    guesses = {other for other in others if abs(other) < LEAST_OTHER_NUMBER} | others & numbers(" ".join(wanted.others))
    return float(wanted.value) in stated and not guesses and len(others) <= MAX_OTHER_NUMBERS


def numbers(text: str) -> set[float]:
    """The numbers in a text; a comma before three digits groups them, any other one ends a number."""
    found = set()
    for match in _NUMBER.findall(text):
        for part in re.sub(r",(?=\d{3}(?!\d))", "", match).split(","):
            try:
                found.add(float(part))
            except ValueError:
                continue
    return found


def _wanted(goal: Goal, state: Changes) -> set[str]:
    facts = set(state.facts()) | {_FINISHED} | _declined(goal.decline)
    # By their places: of two equal values both are needed.
    answers = {f"answer {number} {answer.value}" for number, answer in enumerate(goal.answers)}
    return facts | answers | {f"asked {name}" for name in goal.asked}


def _done(goal: Goal, state: Changes, outcome: Outcome, instruction: str) -> set[str]:
    facts = set(outcome.changes.facts()) | {f"asked {name}" for name in outcome.asked if name in goal.asked}
    if outcome.answer is None:
        return facts
    known = "; ".join([instruction, *state.values()])  # who reports what was changed does not guess
    answered, place = set(), 0
    for number, answer in enumerate(goal.answers):
        behind = _behind(outcome.answer, answer.value, place)
        others = [other for other in goal.answers if other is not answer]
        if behind is not None and tells(outcome.answer, answer, known, others):
            answered.add(f"answer {number} {answer.value}")
            place = behind
    return facts | answered | {_FINISHED} | _declined(outcome.declined)


def _declined(reason: str) -> set[str]:
    return {f"declined {reason}"} if reason else set()


def _behind(text: str, value: int | str, start: int) -> int | None:
    """Where the first mention of ``value`` from ``start`` on ends."""
    if isinstance(value, str):
        found = _mention(text, value, start)
        return None if found is None else found.end()
    ends = [each.end() for each in _NUMBER.finditer(text, start) if float(value) in numbers(each[0])]
    word = _mention(text, _WORDS[value], start) if 0 <= value < len(_WORDS) else None
    return min([*ends, *([word.end()] if word else [])], default=None)


def _counts(text: str) -> set[float]:
    """The numbers in a text that are written as words, up to twelve."""
    return {float(number) for number, word in enumerate(_WORDS) if _mentions(text, word)}


def _mentions(text: str, value: str) -> bool:
    """Whether ``value`` is in ``text`` as words of its own."""
    return _mention(text, value, 0) is not None


def _mention(text: str, value: str, start: int) -> re.Match[str] | None:
    words = r"\s+".join(re.escape(word) for word in value.split())
    return re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE).search(text, start) if words else None
