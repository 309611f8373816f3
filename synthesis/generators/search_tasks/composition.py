"""Questions over a corpus made into one: ``width`` asks for the answers of all, ``depth`` hides a name in a question
that is the answer to the question before (TaskCraft, arXiv:2506.10055)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.search.environment import SEPARATOR, Goal, SearchEnvironment
from agentmill.synthesis.generators.composition import HOW, Draft, How
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.search_tasks.checks import ANSWER_SHOWN, shows_answer, shows_name, words_of
from agentmill.synthesis.generators.search_tasks.generator import NAME_SHOWN, TOP_HIT, top_hit_answers
from agentmill.synthesis.generators.search_tasks.questions import replaced

ANSWER = "answer"
"""The tool that ends a search."""


class SearchComposer:
    """As ``Composer``, for family ``search``. Raises ``EnvError`` for a corpus that is missing or changed."""

    def __init__(self, spec: EnvironmentSpec, tasks: Sequence[Task]) -> None:
        self._environment = SearchEnvironment(spec)
        self._tasks = tasks
        self._naming = _naming(tasks)

    def unfit(self, task: Task) -> str | None:
        """Composed questions and their variants are no parts: their labels would name two things."""
        try:
            goal = msgspec.convert(task.goal, Goal)
        except msgspec.ValidationError:
            return "broken_goal"
        if len(goal.answers) > 1 and not goal.every:
            return "several_answers"
        return "composed" if task.lineage is not None and HOW in task.lineage.notes else None

    def next_parts(self, how: How, chosen: Sequence[Task]) -> Sequence[Task]:
        """Any; of ``depth`` the questions that name the answer of the last one."""
        return self._tasks if how == "width" else self._naming[chosen[-1].task_id]

    def compose(self, how: How, parts: Sequence[Task], chance: random.Random) -> Draft:
        """One question. Raises ``GenerationError`` where it holds an answer (``answer_shown``) or a hidden name
        (``name_shown``), where two answers are equal (``same_answer``), and where a search for its own words, or those
        of one of its parts, finds the answer (``top_hit_answers``)."""
        del chance
        return self._wide(parts) if how == "width" else self._deep(parts)

    def close(self) -> None:
        """Free the environment."""
        self._environment.close()

    def _wide(self, parts: Sequence[Task]) -> Draft:
        parts = sorted(parts, key=lambda part: part.task_id)
        wanted = [answer for part in parts for answer in _goal(part).answers]
        answers = [str(answer) for answer in wanted]
        if len({words_of(answer) for answer in answers}) < len(answers):
            raise GenerationError("same_answer", "two questions have the same answer")
        head = f"Answer all {len(parts)} questions, in their order. Separate the answers by {SEPARATOR!r}."
        instruction = _numbered(head, [part.instruction for part in parts])
        _check_shown(instruction, answers, _hidden(parts))
        return _draft("width", parts, instruction, Goal(wanted, every=True), _hidden(parts))

    def _deep(self, parts: Sequence[Task]) -> Draft:
        names = [str(_goal(part).answers[0]) for part in parts[:-1]]
        questions = [parts[0].instruction]
        for number, (name, part) in enumerate(zip(names, parts[1:], strict=True), 1):
            questions.append(replaced(part.instruction, {name: f"[answer {number}]"}))
            # Or the question before is not needed.
            self._check_needed(questions[-1], part)
        last = parts[-1]
        head = f"Answer question {len(parts)} alone. [answer 1] is the answer to question 1, and so on."
        instruction = _numbered(head, questions)
        hidden = [*_hidden(parts), *names]
        _check_shown(instruction, [str(each) for each in _goal(last).answers], hidden)
        self._check_needed(instruction, last)
        return _draft("depth", parts, instruction, _goal(last), hidden)

    def _check_needed(self, question: str, part: Task) -> None:
        if top_hit_answers(self._environment, question, [str(each) for each in _goal(part).answers]):
            raise GenerationError(TOP_HIT, f"part {part.task_id} needs no other")


def _naming(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks whose questions have the one answer of each task, a name, as words of its own."""
    by_name: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task in tasks:
        answer = task.goal.get("answer")
        if isinstance(answer, str) and answer[:1].isupper():
            by_name[tuple(words_of(answer).split())].append(task.task_id)
    longest = max(map(len, by_name), default=0)
    found: dict[str, list[Task]] = {task.task_id: [] for task in tasks}
    for task in tasks:
        words = words_of(task.instruction).split()
        names = {
            tuple(words[start : start + length]) for start in range(len(words)) for length in range(1, longest + 1)
        }
        for name in sorted(names & by_name.keys()):
            for other in by_name[name]:
                found[other].append(task)
    return found


def _goal(task: Task) -> Goal:
    return msgspec.convert(task.goal, Goal)


def _hidden(parts: Sequence[Task]) -> list[str]:
    """The names that the questions hide themselves."""
    return [str(name) for part in parts if part.lineage is not None for name in part.lineage.notes.get("hidden", [])]


def _numbered(head: str, questions: Sequence[str]) -> str:
    return "\n\n".join([head, *(f"Question {number}: {question}" for number, question in enumerate(questions, 1))])


def _check_shown(instruction: str, answers: Sequence[str], hidden: Sequence[str]) -> None:
    if shows_answer(instruction, answers):
        raise GenerationError(ANSWER_SHOWN, "a question has the answer of another one")
    if shows_name(instruction, hidden):
        raise GenerationError(NAME_SHOWN, "a question has a name that another one hides")


def _draft(how: How, parts: Sequence[Task], instruction: str, goal: Goal, hidden: Sequence[str]) -> Draft:
    """The solution is that of each part without its answer, and no passage is looked for twice."""
    gold: list[AnyAction] = []
    for part in parts:
        calls = [each for each in part.gold or [] if isinstance(each, ApiAction) and each.function != ANSWER]
        gold += [call for call in calls if call not in gold]
    seen = list(dict.fromkeys(passage for part in parts for passage in _goal(part).seen))
    text = f"{SEPARATOR} ".join(str(answer) for answer in goal.answers)
    return Draft(
        instruction=instruction,
        goal={"answer": goal.answer, **({"every": True} if goal.every else {}), **({"seen": seen} if seen else {})},
        gold=[*gold, ApiAction(function=ANSWER, kwargs={"text": text})],
        structure=digest(how, [part.structure_digest or part.task_id for part in parts]),
        notes={"hidden": list(hidden)},
    )
