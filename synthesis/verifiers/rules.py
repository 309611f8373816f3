"""Rules over the actions of a trajectory: a small language of order, number, form and grounding, never code.

rules:
  - {id: reads_first, before: [{tool: read_file}, {tool: write_file}]}     # no write before the first read
  - {id: closes, after: [{tool: open}, {tool: close}]}                     # each open is followed by a close
  - {id: keeps_files, never: {tool: "delete_*"}}
  - {id: answers, at_least: 1, of: {tool: submit}}
  - {id: few_searches, at_most: 5, of: {tool: search}}
  - {id: quick, within: 10, of: {tool: submit}}                            # in the first ten turns
  - {id: retries, within: 2, of: {tool: fetch}, since: {tool: fetch, error: true}}
  - {id: is_json, answer: {json: true}}                                    # the form of the last message
  - {id: grounded, grounded: numbers}                                      # numbers of the answer were seen before
  - {id: legal, legal: true}                                               # calls fit the declared tools
  - {id: no_loop, repeats: 2}                                              # the same action and answer, in a row
  - {id: acts, idle: 0.5}                                                  # turns that change nothing, as a share

``before``, ``after`` and ``within`` are the precedence and response patterns of Dwyer, Avrunin and Corbett (ICSE 1999).
A rule that has nothing to say about a trajectory (``when`` fits nothing, no state is known) does not apply to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.records.trajectory import (
    Action,
    AnyAction,
    AnyItem,
    ApiAction,
    TextObservation,
    Trajectory,
    WebObservation,
)
from agentmill.schemas.views.conversation import answers
from agentmill.schemas.views.roles import perceived, perspectives
from agentmill.synthesis.environments.environment import misfit
from agentmill.synthesis.step_values import steps_of
from agentmill.synthesis.verifiers.action_pattern import ActionPattern, Regex
from agentmill.synthesis.verifiers.grounding import ShownValues, leaves, numbers_in
from agentmill.synthesis.verifiers.verifier import PartId

FORMS = ("never", "before", "after", "at_least", "at_most", "within", "answer", "grounded", "legal", "repeats", "idle")
WITH_PATTERN = ("at_least", "at_most", "within")


class Form(Config):
    """The form of an answer: all that is given must hold."""

    json_: bool = Field(default=False, alias="json", description="it is JSON, and nothing else")
    matches: Regex | None = Field(default=None, description="it holds this regular expression")
    lacks: Regex | None = Field(default=None, description="it does not hold this regular expression")
    most_words: int | None = Field(default=None, ge=0, description="it has at most so many words")
    least_words: int | None = Field(default=None, ge=0, description="it has at least so many words")
    most_lines: int | None = Field(default=None, ge=1, description="it has at most so many lines")

    @model_validator(mode="after")
    def _asks_something(self) -> Form:
        if not self.model_fields_set:
            raise ValueError("`answer` asks nothing; give one of json, matches, lacks, most_words, least_words")
        return self

    def fault(self, text: str) -> str | None:
        """What is wrong with a text, if anything is."""
        words, lines = len(text.split()), len(text.strip().splitlines())
        faults = {
            "no JSON": self.json_ and not _is_json(text),
            f"{self.matches!r} is not in it": self.matches is not None and not re.search(self.matches, text),
            f"{self.lacks!r} is in it": self.lacks is not None and bool(re.search(self.lacks, text)),
            f"{words} words": not (self.least_words or 0)
            <= words
            <= (words if self.most_words is None else self.most_words),
            f"{lines} lines": self.most_lines is not None and lines > self.most_lines,
        }
        return next((fault for fault, holds in faults.items() if holds), None)


class Violation(msgspec.Struct, frozen=True):
    """What breaks a rule: the item, if one does, and why."""

    item: int | None
    detail: str


class Rule(Config):
    """One rule: it has an ``id`` and one form. A trajectory without what ``when`` names is left alone."""

    id: PartId
    weight: float = Field(default=1.0, gt=0, description="how much of the score it is")
    veto: bool = Field(default=False, description="whoever breaks it does not pass, whatever the score")
    when: ActionPattern | None = Field(default=None, description="it applies only where this occurs")
    never: ActionPattern | None = Field(default=None, description="this does not occur")
    before: tuple[ActionPattern, ActionPattern] | None = Field(
        default=None, description="the second does not occur before the first has"
    )
    after: tuple[ActionPattern, ActionPattern] | None = Field(
        default=None, description="each of the first is followed by the second"
    )
    at_least: int | None = Field(default=None, ge=1, description="`of` occurs so often, or more")
    at_most: int | None = Field(default=None, ge=0, description="`of` occurs so often, or less")
    within: int | None = Field(
        default=None, ge=1, description="`of` occurs in the first so many turns, or after `since`"
    )
    of: ActionPattern | None = Field(default=None, description="what at_least, at_most and within speak of")
    since: ActionPattern | None = Field(default=None, description="within: so many turns after each of this")
    answer: Form | None = Field(
        default=None, description="the form of the agent's last message, or of a last call's texts"
    )
    grounded: Literal["numbers", "arguments"] | None = Field(
        default=None, description="numbers of the last message, or values in calls, were in the task or shown before"
    )
    legal: Literal[True] | None = Field(default=None, description="calls name declared tools and fit their schemas")
    repeats: int | None = Field(
        default=None, ge=1, description="an action with the same answer occurs at most so often in a row"
    )
    idle: float | None = Field(
        default=None, ge=0, lt=1, description="at most this share of turns leaves the state as it was"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Rule:
        given = [form for form in FORMS if getattr(self, form) is not None]
        if len(given) != 1:
            raise ValueError(
                f"rule {self.id!r} has {' and '.join(given) or 'no form'}; expected one of {', '.join(FORMS)}"
            )
        (form,) = given
        if (self.of is None) == (form in WITH_PATTERN):
            raise ValueError(f"rule {self.id!r}: `of` goes with {', '.join(WITH_PATTERN)}, and these need it")
        if self.since is not None and form != "within":
            raise ValueError(f"rule {self.id!r}: `since` goes with `within`")
        return self

    @property
    def form(self) -> str:
        """Its form."""
        return next(form for form in FORMS if getattr(self, form) is not None)

    def violations(self, trajectory: Trajectory, instruction: str | None = None) -> list[Violation] | None:
        """What breaks it; ``None`` where it does not apply. ``instruction`` is that of the task, if it is known."""
        content = trajectory.content
        if self.when is not None and not self.when.places(content):
            return None
        if self.form == "grounded":
            return (_ungrounded if self.grounded == "numbers" else _ungrounded_calls)(trajectory, instruction)
        return _CHECKS[self.form](self, trajectory)


def _never(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.never is not None
    return [Violation(place, f"{rule.never} occurs") for place in rule.never.places(trajectory.content)]


def _before(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.before is not None
    first, second = rule.before
    start = next(iter(first.places(trajectory.content)), len(trajectory.content))
    early = [place for place in second.places(trajectory.content) if place < start]
    return [Violation(place, f"{second} before any {first}") for place in early]


def _after(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.after is not None
    first, second = rule.after
    last = max(second.places(trajectory.content), default=-1)
    left = [place for place in first.places(trajectory.content) if place >= last]
    return [Violation(place, f"no {second} after it") for place in left]


def _at_least(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.of is not None
    assert rule.at_least is not None
    n = len(rule.of.places(trajectory.content))
    return [] if n >= rule.at_least else [Violation(None, f"{rule.of} occurs {n} times")]


def _at_most(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.of is not None
    places = rule.of.places(trajectory.content)
    return [Violation(place, f"{rule.of} once more") for place in places[rule.at_most :]]


def _within(rule: Rule, trajectory: Trajectory) -> list[Violation] | None:
    assert rule.of is not None
    assert rule.within is not None
    content = trajectory.content
    found = [(place, content[place].turn) for place in rule.of.places(content)]
    if rule.since is None:
        in_time = any(turn <= rule.within for _, turn in found)
        return [] if in_time else [Violation(None, f"no {rule.of} in the first {rule.within} turns")]
    starts = rule.since.places(content)
    late = [
        start
        for start in starts
        if not any(place > start and turn - content[start].turn <= rule.within for place, turn in found)
    ]
    return [Violation(place, f"no {rule.of} within {rule.within} turns") for place in late] if starts else None


def _answer(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.answer is not None
    place, text = last_answer(trajectory.content)
    fault = "there is none" if place is None else rule.answer.fault(text)
    return [] if fault is None else [Violation(place, f"the answer: {fault}")]


def _ungrounded(trajectory: Trajectory, instruction: str | None) -> list[Violation] | None:
    place, text = last_answer(trajectory.content)
    numbers = numbers_in(text)
    if place is None or not numbers:
        return None
    seen = [instruction or "", *(_text(item) for item in trajectory.content[:place] if not isinstance(item, Action))]
    known = {number for each in seen for number in numbers_in(each)}
    return [Violation(place, f"{number:g} was never seen") for number in sorted(set(numbers) - known)]


def _ungrounded_calls(trajectory: Trajectory, instruction: str | None) -> list[Violation] | None:
    """Values in calls that their agent was not shown; the last action is left out, since it gives what was found."""
    content, roles = trajectory.content, perspectives(trajectory)
    last = max((place for place, item in enumerate(content) if isinstance(item, Action)), default=-1)
    found, compared = [], False
    for name in dict.fromkeys(item.agent for item in content if isinstance(item, ApiAction)):
        items, places = perceived(name, roles, content) if name in roles else (content, range(len(content)))
        hidden = name in roles and not roles[name].told
        shown = ShownValues("" if hidden else instruction or "")
        for place, item in zip(places, items, strict=True):
            if isinstance(item, ApiAction) and place < last:
                values = list(leaves(item.kwargs))
                compared = compared or bool(values)
                unseen = [value for value in values if not shown.has(value)]
                found += [Violation(place, f"{value!s:.40} was never seen") for value in unseen]
            if not isinstance(item, Action):  # what an agent writes itself is no evidence
                shown.add(_text(item))
    return found if compared else None


def _legal(rule: Rule, trajectory: Trajectory) -> list[Violation] | None:
    del rule
    tools = {tool.name: tool for tool in trajectory.tools}
    if not tools:
        return None
    found = []
    for place, item in enumerate(trajectory.content):
        if isinstance(item, ApiAction):
            tool = tools.get(item.function)
            fault = f"there is no tool {item.function!r}" if tool is None else misfit(item, tool)
            found += [] if fault is None else [Violation(place, fault)]
    return found


def _repeats(rule: Rule, trajectory: Trajectory) -> list[Violation]:
    assert rule.repeats is not None
    content, found, in_row, last = trajectory.content, [], 0, None
    for step in steps_of(trajectory):
        done = [item for item in content if isinstance(item, Action) and item.turn == step.turn]
        seen = [_text(item) for item in answers(content, step.item)]
        this = ([_essence(action) for action in done], seen)
        in_row = in_row + 1 if this == last else 1
        last = this
        if in_row > rule.repeats:
            found.append(Violation(step.item, f"{in_row} times in a row"))
    return found


def _idle(rule: Rule, trajectory: Trajectory) -> list[Violation] | None:
    assert rule.idle is not None
    steps = steps_of(trajectory)
    pairs = [(step.item, step.state, _state_after(trajectory.content, step.turn)) for step in steps]
    known = [(item, before == after) for item, before, after in pairs if before is not None and after is not None]
    idle = [item for item, same in known if same]
    if not known:
        return None
    over = len(idle) / len(known) > rule.idle
    return [Violation(item, f"{len(idle)} of {len(known)} turns change nothing") for item in idle] if over else []


_CHECKS: Mapping[str, Callable[[Rule, Trajectory], list[Violation] | None]] = {
    "never": _never,
    "before": _before,
    "after": _after,
    "at_least": _at_least,
    "at_most": _at_most,
    "within": _within,
    "answer": _answer,
    "legal": _legal,
    "repeats": _repeats,
    "idle": _idle,
}


def asked_first(content: Sequence[AnyItem]) -> str | None:
    """What the user asked at the start, where no task says it."""
    opening = (item.content for item in content if isinstance(item, TextObservation) and item.source == "user")
    return next(opening, None)


def last_answer(content: Sequence[AnyItem]) -> tuple[int | None, str]:
    """The agent's last action and what it says, as ``answer_at``; a proposal, or words to other agents, is none."""
    for place in reversed(range(len(content))):
        item = content[place]
        if isinstance(item, Action) and item.role in (None, "actor"):
            return place, answer_at(content, place)
    return None, ""


def answer_at(content: Sequence[AnyItem], place: int) -> str:
    """The text of an item: a message, code, or the texts and numbers in the arguments of a call, one a line."""
    item = content[place]
    if isinstance(item, ApiAction):
        # Without flags, as in final=True, which are no part of an answer.
        return "\n".join(map(str, leaves(item.kwargs)))
    return item.content if isinstance(item, Action) else _text(item)


def _state_after(content: Sequence[AnyItem], turn: int) -> str | None:
    seen = (item.state_digest for item in reversed(content) if item.turn == turn and not isinstance(item, Action))
    return next((state for state in seen if state is not None), None)


def _essence(action: AnyAction) -> tuple[str, str]:
    """What an action does, without thoughts and ids."""
    if isinstance(action, ApiAction):
        return action.function, action.raw_arguments or msgspec.json.encode(action.kwargs, order="sorted").decode()
    return type(action).__name__, action.content


def _text(item: AnyItem) -> str:
    if isinstance(item, TextObservation):
        return item.content
    return (item.axtree or item.html or "") if isinstance(item, WebObservation) else ""


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
