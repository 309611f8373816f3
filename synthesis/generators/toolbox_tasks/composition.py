"""Toolbox tasks in a sequence over one database: the calls of each part are made in what the parts before left.

A part goes with others if it comes to the same there as alone: its calls are carried out, what it looks up is the same,
and all that it changes is still so in the end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.toolbox.changes import Changes, changes
from agentmill.synthesis.environments.toolbox.database import Contents
from agentmill.synthesis.environments.toolbox.environment import ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal
from agentmill.synthesis.environments.toolbox.toolbox import FINISH, Toolbox
from agentmill.synthesis.environments.toolbox.user import Request, Slot, fill
from agentmill.synthesis.generators.composition import Draft, How
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_tasks.generator import gives_away
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import plain

_LETTERS = "abcd"

Entity = tuple[str, object]
"""A row by its table and key, or a value that no other row has by its column."""


class ToolboxComposer:
    """As ``Composer``, for family ``toolbox``. Raises ``EnvError`` for a toolbox that cannot be used."""

    def __init__(self, spec: EnvironmentSpec, tasks: Sequence[Task]) -> None:
        self._environment = ToolboxEnvironment(spec)
        self._writing = {tool.name for tool in self._environment.toolbox.tools if tool.writes}
        self._tasks = tasks
        self._entities = {task.task_id: entities(task, self._environment.toolbox) for task in tasks}
        self._alone: dict[str, list[tuple[ApiAction, object]]] = {}

    def unfit(self, task: Task) -> str | None:
        """Tasks with details that a user keeps back, those to decline, and several accepted ends are no parts."""
        try:
            goal, request = _read(task)
        except msgspec.ValidationError:
            return "broken_goal"
        if request.hidden or goal.asked or goal.user:
            return "hidden_details"
        if goal.decline:
            return "declined"
        return "several_ends" if len(goal.states) > 1 else None

    def next_parts(self, how: How, chosen: Sequence[Task]) -> Sequence[Task]:
        """Any; of ``recombine`` those about a row that all chosen ones are about."""
        if how != "recombine":
            return self._tasks
        shared = self._shared(chosen)
        return [task for task in self._tasks if shared & self._entities[task.task_id]]

    def compose(self, how: How, parts: Sequence[Task], chance: random.Random) -> Draft:
        """One request. Raises ``GenerationError`` for a call that is refused after other parts (``call_refused``),
        look-ups that show something else (``other_answer``), changes that come to something else (``other_effect``) or
        do not last (``undone``), and for answers that cannot be distinguished or are in the request."""
        gold, found = self._played(parts)
        goals = [_read(part)[0] for part in parts]
        _check_lasting([goal.states[0] for goal in goals], found)
        answers = tuple(answer for goal in goals for answer in goal.answers)
        forbidden = tuple(sorted({tool for goal in goals for tool in goal.forbidden}))
        order = list(range(len(parts)))
        while how == "reorder" and order == sorted(order):
            chance.shuffle(order)
        request = _request([_read(part)[1] for part in parts], order)
        _check_answers(request.text(), answers)
        texts = [_finish(part) for part in parts]
        finish = ApiAction(function=FINISH, kwargs={"answer": "; ".join(text for text in texts if text)})
        shared = sorted(f"{name} {value}" for name, value in self._shared(parts)) if how == "recombine" else []
        return Draft(
            instruction=request.text(),
            initial_state={"request": plain(request)},
            goal=plain(Goal(states=(found,), answers=answers, forbidden=forbidden)),
            gold=[*gold, finish],
            structure=digest("composed", order, [part.structure_digest or part.task_id for part in parts]),
            notes={"shared": shared} if shared else {},
        )

    def close(self) -> None:
        """Free the database."""
        self._environment.close()

    def _shared(self, tasks: Sequence[Task]) -> frozenset[Entity]:
        return frozenset.intersection(*(self._entities[task.task_id] for task in tasks))

    def _played(self, parts: Sequence[Task]) -> tuple[list[AnyAction], Changes]:
        """The calls of all parts in order, without look-ups that were made before, and what they change."""
        alone = [self._shown_alone(part) for part in parts]
        before = self._start()
        gold: list[AnyAction] = []
        for part, calls in zip(parts, alone, strict=True):
            # An answer may be what a change shows, such as the key of a new row.
            asks = bool(_read(part)[0].answers)
            for call, shown in calls:
                transition = self._environment.step(call)
                writes = call.function in self._writing
                if transition.error:
                    raise GenerationError("call_refused", f"{call.function} of part {part.task_id}")
                if transition.observation != shown and (asks or not writes):
                    raise GenerationError("other_answer", f"{call.function} of part {part.task_id}")
                gold += [call] if writes or call not in gold else []
        return gold, changes(self._environment.toolbox, before, self._environment.database.contents())

    def _shown_alone(self, task: Task) -> list[tuple[ApiAction, object]]:
        """The calls of a part but for its end, with what each of them shows when nothing was done before."""
        if task.task_id not in self._alone:
            self._start()
            calls = [each for each in task.gold or [] if isinstance(each, ApiAction) and each.function != FINISH]
            self._alone[task.task_id] = [(call, self._environment.step(call).observation) for call in calls]
        return self._alone[task.task_id]

    def _start(self) -> Contents:
        """Back to the rows of the toolbox, which are returned; nothing is asked for."""
        nothing = Task(task_id="", environment_id=self._environment.spec.environment_id, instruction="")
        self._environment.reset(nothing, 0)
        return self._environment.database.contents()


def entities(task: Task, toolbox: Toolbox) -> frozenset[Entity]:
    """What the arguments of a solution name: rows by their keys, and values of columns where each row has another."""
    parameters = {tool.name: tool.parameters for tool in toolbox.tools}
    found = set()
    for action in [each for each in task.gold or [] if isinstance(each, ApiAction)]:
        for parameter in parameters.get(action.function, ()):
            table = toolbox.keyed(parameter.column)
            value = action.kwargs.get(parameter.name)
            if table is not None:
                found.add((table.name, value))
            elif toolbox.column(parameter.column)[1].unique:
                found.add((parameter.column, value))
    return frozenset(found)


def _read(task: Task) -> tuple[Goal, Request]:
    """Raises ``msgspec.ValidationError``. A request that is worded otherwise than the instruction has no slots."""
    goal = msgspec.convert(task.goal, Goal, str_keys=True)
    request = msgspec.convert(task.initial_state.get("request", {"template": ""}), Request)
    alone = request.hidden or request.text() == task.instruction
    return goal, request if alone else Request(task.instruction)


def _finish(task: Task) -> str:
    """The answer that the solution hands in."""
    last = (task.gold or [])[-1]
    return str(last.kwargs.get("answer", "")) if isinstance(last, ApiAction) and last.function == FINISH else ""


def _check_lasting(wanted: Sequence[Changes], found: Changes) -> None:
    """Raises ``GenerationError`` where not all that the parts change alone has changed in the end."""
    held = {*found.facts()}
    for number, state in enumerate(wanted):
        missing = [fact for fact in state.facts() if fact not in held]
        if missing:
            last = number == len(wanted) - 1
            raise GenerationError("other_effect" if last else "undone", f"part {number + 1}: {missing[0]}")


def _check_answers(instruction: str, answers: Sequence[Answer]) -> None:
    """Raises ``GenerationError`` for answers that the whole gives away, and equal ones."""
    if len({answer.value for answer in answers}) < len(answers):
        raise GenerationError("same_answer", "two parts have the same answer")
    shown = [answer.value for answer in answers if gives_away(instruction, answer)]
    if shown:
        raise GenerationError("answer_shown", f"the request has the answer {shown[0]!r}")


def _request(parts: Sequence[Request], order: Sequence[int]) -> Request:
    """The requests one after the other, or as a list in the ``order`` of parts, with the order to work in."""
    slots: dict[str, Slot] = {}
    texts = []
    for part in parts:
        named = {name: f"s{len(slots) + number}" for number, name in enumerate(part.slots, 1)}
        slots |= {named[name]: slot for name, slot in part.slots.items()}
        texts.append(fill(part.template, {name: f"{{{numbered}}}" for name, numbered in named.items()}))
    if list(order) == sorted(order):
        later = [
            f"Then {text.removeprefix('Please ')}" if text.startswith("Please ") else f"After that: {text}"
            for text in texts[1:]
        ]
        return Request(" ".join([texts[0], *later]), slots)
    listed = [f"({letter}) {texts[part]}" for letter, part in zip(_LETTERS, order, strict=False)]
    work = ", ".join(f"({_LETTERS[order.index(part)]})" for part in range(len(parts)))
    head = f"Do the following in the order {work}, and give answers in that order, too."
    return Request("\n".join([head, *listed]), slots)
