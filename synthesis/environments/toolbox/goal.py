"""The goal of a toolbox task, and how far a state meets it.

Kept in ``task.goal``. The state is compared with each of the ``states`` that are accepted, as differences from the
start, so that nothing else may have changed; the answer must hold every value that was asked for, and not a list of
guesses; what the user alone knew must have been asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from synthesis.environments.environment import Check
from synthesis.environments.toolbox.changes import Changes

MAX_OTHER_NUMBERS = 2
"""How many numbers besides those asked for and those of the instruction an answer may hold."""

_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value that the final answer must hold. Of ``others``, its rivals, the answer may hold none."""

    value: int | str
    others: tuple[str, ...] = ()


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``states`` are alternatives; ``forbidden`` are tools not to be used, ``asked`` what must be asked for."""

    states: tuple[Changes, ...] = (Changes(),)
    answers: tuple[Answer, ...] = ()
    forbidden: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """What an episode came to: ``answer`` is ``None`` until it is finished."""

    changes: Changes
    answer: str | None
    violations: Sequence[str]
    asked: Sequence[str]


def judge(goal: Goal, outcome: Outcome, instruction: str) -> Check:
    """``score`` is the share of what was to be done, counting what should not have been done among it; 0 with a
    violation of a rule. Evidence names what is missing and what is too much."""
    wanted, done = min(
        ((_wanted(goal, state), _done(goal, outcome, instruction)) for state in goal.states),
        key=lambda pair: len(pair[0] ^ pair[1]),
    )
    missing, extra = sorted(wanted - done), sorted(done - wanted)
    violations = sorted(set(outcome.violations))
    score = 0.0 if violations else len(wanted & done) / len(wanted | done)
    evidence = {"missing": missing, "unwanted": extra, "violations": violations}
    return Check(passed=not (missing or extra or violations), score=score, evidence=evidence)


def tells(answer: str, wanted: Answer, instruction: str, also: Iterable[Answer] = ()) -> bool:
    """Whether ``answer`` holds a value, and is no list of guesses. ``also`` are the other values asked for."""
    asked = [wanted, *also]
    if isinstance(wanted.value, str):
        allowed = [instruction, *(str(each.value) for each in asked)]
        rivals = [other for other in wanted.others if not any(_mentions(text, other) for text in allowed)]
        return _mentions(answer, wanted.value) and not any(_mentions(answer, other) for other in rivals)
    known = {*numbers(instruction), *(float(each.value) for each in asked if not isinstance(each.value, str))}
    texts = " ".join(each.value for each in asked if isinstance(each.value, str))
    others = numbers(answer) - known - numbers(texts)
    return float(wanted.value) in numbers(answer) and len(others) <= MAX_OTHER_NUMBERS


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
    facts = set(state.facts()) | {"finished"}
    return facts | {f"answer {answer.value}" for answer in goal.answers} | {f"asked {name}" for name in goal.asked}


def _done(goal: Goal, outcome: Outcome, instruction: str) -> set[str]:
    facts = set(outcome.changes.facts()) | {f"asked {name}" for name in outcome.asked if name in goal.asked}
    if outcome.answer is None:
        return facts
    told = {
        f"answer {answer.value}"
        for answer in goal.answers
        if tells(outcome.answer, answer, instruction, [other for other in goal.answers if other is not answer])
    }
    return facts | told | {"finished"}


def _mentions(text: str, value: str) -> bool:
    """Whether ``value`` stands in ``text`` as words of its own."""
    words = r"\s+".join(re.escape(word) for word in value.split())
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None
