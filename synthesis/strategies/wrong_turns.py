"""Wrong turns: what an agent might have done instead of what was recorded, drawn by a seed from kinds of errors.

Single injected errors of a known kind are labels that need no judge (AEGIS, arXiv:2509.14295).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.trajectory import Action, AnyAction, ApiAction, CodeAction, MessageAction, Trajectory
from agentmill.schemas.views.pairing import done
from agentmill.synthesis.environments.environment import Environment, tidy
from agentmill.synthesis.rollouts.step import carry_out, environment_at_fault

ErrorKind = Literal["other_action", "argument", "omit", "repeat", "early_end"]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)

TRIES = 16
"""Actions of one kind that are tried in one state; an interpreter is replayed after each."""

MOST_PLACES = 256
"""Numbers and quoted texts of an action that are looked at."""

LITERAL = re.compile(r"\b\d+(?:\.\d+)?\b|\"[^\"\n]*\"|'[^'\n]*'")
"""Numbers and quoted texts: the arguments in code, and in commands."""


class WrongTurn(msgspec.Struct, frozen=True):
    """A wrong turn: its ``actions``, and the last recorded turn that does not follow it."""

    kind: ErrorKind
    actions: Sequence[AnyAction]
    after: int


class Moment:
    """The state before a recorded turn, in a live environment; ``recorded`` are the actions of all turns."""

    def __init__(
        self, environment: Environment, parent: Trajectory, recorded: Mapping[int, list[AnyAction]], turn: int
    ) -> None:
        self.recorded = recorded
        self.turn = turn
        self.actions = recorded[turn]
        self._environment = environment
        own = (item for item in parent.content if item.turn == turn and not isinstance(item, Action))
        # Feedback and marks of a shortened context are no answers of the environment, and have no state.
        answers = [item for item in own if item.state_digest is not None]
        self._answered = [getattr(item, "content", None) for item in answers]
        self._state = answers[-1].state_digest if answers else None
        with environment_at_fault():
            self.admissible = environment.admissible()

    def written(self, call: ApiAction, like: AnyAction) -> AnyAction | None:
        """A call as the agent writes it in the place of ``like``: as a call or a command; ``None`` if it cannot be."""
        if isinstance(like, ApiAction):
            return call
        if not isinstance(like, MessageAction):
            return None
        try:
            return MessageAction(content=self._environment.command(call))
        except ValueError:
            return None

    def call_of(self, action: AnyAction) -> ApiAction | None:
        """The call that an action is; of a command, where it is one of the admissible ones."""
        if isinstance(action, ApiAction):
            return action if action.raw_arguments is None else None
        known = (call for call in self.admissible if isinstance(action, MessageAction))
        return next((call for call in known if self._command(call) == tidy(getattr(action, "content", ""))), None)

    def changes(self, wrong: WrongTurn) -> bool:
        """Whether the turn leads to another state, or shows something else, than the recorded one did."""
        answered, state, _ = self._tried(wrong)
        return state != self._state or answered != self._answered

    def ends(self, wrong: WrongTurn) -> bool:
        """Whether the turn ends the episode."""
        return self._tried(wrong)[2]

    def _command(self, call: ApiAction) -> str | None:
        written = self.written(call, MessageAction(content=""))
        return None if not isinstance(written, MessageAction) else tidy(written.content)

    def _tried(self, wrong: WrongTurn) -> tuple[list[Any], str, bool]:
        """What the turn shows, the state it leads to, and whether it ends the episode; the state is restored."""
        with environment_at_fault():
            before = self._environment.snapshot()
        answered: list[Any] = []
        ended = False
        for action in wrong.actions:
            transition = carry_out(self._environment, action)
            answered.append(getattr(transition.observation, "content", None))
            ended = transition.terminated
            if ended:
                break
        with environment_at_fault():
            state = self._environment.state_digest()
            self._environment.restore(before)
        return answered, state, ended


def draw(
    moment: Moment, kinds: Iterable[ErrorKind], number: int, seed: int
) -> tuple[WrongTurn | None, list[ErrorKind]]:
    """The wrong turn with this number, from 0, and the kinds that were drawn before and do not apply here.

    Kinds are drawn in an order of ``seed``, one wrong turn of each at a time; all differ in what they do. ``None``
    where there are not so many.
    """
    order = sorted(kinds)
    random.Random(seed).shuffle(order)
    waiting = {kind: _valid(moment, kind, random.Random(f"{seed}:{kind}")) for kind in order}
    applying: set[ErrorKind] = set()
    skipped: list[ErrorKind] = []
    seen = {_deed(moment.actions)}
    while waiting:
        for kind, turns in list(waiting.items()):
            wrong = next((each for each in turns if _deed(each.actions) not in seen), None)
            if wrong is None:
                del waiting[kind]
                skipped += [] if kind in applying else [kind]
                continue
            applying.add(kind)
            if len(seen) == number + 1:
                return wrong, skipped
            seen.add(_deed(wrong.actions))
    return None, skipped


def _valid(moment: Moment, kind: ErrorKind, chance: random.Random) -> Iterator[WrongTurn]:
    """The turns of a kind that are errors: an action that does just what was recorded is none."""
    test = {"other_action": moment.changes, "argument": moment.changes, "early_end": moment.ends}.get(kind)
    tried = islice(KINDS[kind](moment, chance), TRIES)
    return (wrong for wrong in tried if test is None or test(wrong))


def _deed(actions: Sequence[AnyAction]) -> str:
    return done(actions, range(len(actions)))


def _other_actions(moment: Moment, chance: random.Random) -> Iterator[WrongTurn]:
    """Another admissible action; where none is known, another one of the trajectory."""
    place = chance.randrange(len(moment.actions))
    like = moment.actions[place]
    others: list[AnyAction | None] = [moment.written(call, like) for call in moment.admissible]
    if not any(others):
        others = [each for turn, actions in moment.recorded.items() if turn != moment.turn for each in actions]
    yield from _replaced(moment, "other_action", place, chance.sample(others, len(others)))


def _other_arguments(moment: Moment, chance: random.Random) -> Iterator[WrongTurn]:
    """One argument changed to another value that is seen in the trajectory, or in an admissible action."""
    place = chance.randrange(len(moment.actions))
    action = moment.actions[place]
    call = moment.call_of(action)
    others: list[AnyAction | None] = []
    if call is not None:
        others = [moment.written(each, action) for each in _recalled(moment, call)]
    texts = _rewritten(moment, action, chance)
    yield from _replaced(moment, "argument", place, [*chance.sample(others, len(others)), *texts])


def _recalled(moment: Moment, call: ApiAction) -> list[ApiAction]:
    """The call with one argument changed: first to values of its name, where there are none to others of its type."""
    calls = [each for actions in moment.recorded.values() for each in actions if isinstance(each, ApiAction)]
    known = [(name, value) for each in [*calls, *moment.admissible] for name, value in each.kwargs.items()]
    found = []
    for name, own in call.kwargs.items():
        named = [value for other, value in known if other == name]
        typed = [value for _, value in known if type(value) is type(own)]
        values = _differing(named, own) or _differing(typed, own)
        found += [ApiAction(function=call.function, kwargs={**call.kwargs, name: value}) for value in values]
    return found


def _differing(values: Iterable[Any], own: Any) -> list[Any]:
    return list({digest(value): value for value in values if digest(value) != digest(own)}.values())


def _rewritten(moment: Moment, action: AnyAction, chance: random.Random) -> list[AnyAction | None]:
    """An action in code or words with one number or quoted text changed to another one of the trajectory.

    These are a few that are drawn: there may be hundreds of numbers, and as many for each of them.
    """
    known = [text for actions in moment.recorded.values() for each in actions for text in _texts(each)]
    literals = list(dict.fromkeys(found for text in known for found in LITERAL.findall(text)))
    places = [(text, match) for text in _texts(action) for match in LITERAL.finditer(text)]
    of_kind = {digits: [each for each in literals if each[0].isdigit() is digits] for digits in (True, False)}
    pairs = []
    for text, match in chance.sample(places, min(len(places), MOST_PLACES)):
        alike = of_kind[match[0][0].isdigit()]
        pairs += [(text, match, each) for each in chance.sample(alike, min(TRIES, len(alike))) if each != match[0]]
    chance.shuffle(pairs)
    return [
        _with_text(action, text, text[: match.start()] + each + text[match.end() :])
        for text, match, each in pairs[: 4 * TRIES]
    ]


def _texts(action: AnyAction) -> list[str]:
    """What is written in an action: a command, code, or the code in the arguments of a call."""
    if isinstance(action, MessageAction | CodeAction):
        return [action.content]
    return [value for value in action.kwargs.values() if isinstance(value, str) and "\n" in value]


def _with_text(action: AnyAction, old: str, new: str) -> AnyAction:
    if isinstance(action, MessageAction | CodeAction):
        return msgspec.structs.replace(action, content=new)
    return msgspec.structs.replace(action, kwargs={name: new if v == old else v for name, v in action.kwargs.items()})


def _replaced(moment: Moment, kind: ErrorKind, place: int, others: Iterable[AnyAction | None]) -> Iterator[WrongTurn]:
    """The recorded turn with the action at ``place`` replaced by each of ``others``, without the thoughts of it."""
    for other in others:
        if other is not None and _deed([other]) != _deed([moment.actions[place]]):
            bare = msgspec.structs.replace(other, description=None, reasoning_content=None)
            yield WrongTurn(kind, [*moment.actions[:place], bare, *moment.actions[place + 1 :]], moment.turn)


def _omitted(moment: Moment, chance: random.Random) -> Iterator[WrongTurn]:
    """The turn is left out, so that the next recorded one comes too early."""
    del chance
    following = min((turn for turn in moment.recorded if turn > moment.turn), default=None)
    if following is not None:
        yield WrongTurn("omit", moment.recorded[following], following)


def _repeated(moment: Moment, chance: random.Random) -> Iterator[WrongTurn]:
    """The turn before is taken once more, before this one."""
    del chance
    before = max((turn for turn in moment.recorded if turn < moment.turn), default=None)
    if before is not None:
        yield WrongTurn("repeat", moment.recorded[before], moment.turn - 1)


def _ended(moment: Moment, chance: random.Random) -> Iterator[WrongTurn]:
    """The last recorded turn comes now and ends the episode. One turn before it this would be ``omit``."""
    del chance
    *_, before, last = (0, *sorted(moment.recorded))
    if before > moment.turn:
        yield WrongTurn("early_end", moment.recorded[last], last)


KINDS: Mapping[ErrorKind, Callable[[Moment, random.Random], Iterator[WrongTurn]]] = {
    "other_action": _other_actions,
    "argument": _other_arguments,
    "omit": _omitted,
    "repeat": _repeated,
    "early_end": _ended,
}
