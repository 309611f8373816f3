"""Search over a corpus: an agent looks for passages, opens them, and ends by an answer.

``spec.source`` is JSON, ``{"path": …, "digest": …}``: the corpus and what it must hold. ``task.goal`` is ``{"answer":
text, or list of texts}``: one of them is enough, or with ``"every": true`` all are needed, separated by ``;``. With
``"seen": [passage ids]`` these must have been opened, or shown among results. Nothing depends on the seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import missing_modules_explained
from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, TextObservation, Tool
from agentmill.synthesis.environments.environment import Check, EnvError, Transition, misfit, refusal
from agentmill.synthesis.environments.search.examples import examples
from agentmill.synthesis.environments.search.sources import read_source
from agentmill.synthesis.environments.toolbox.calls import (
    MAX_TEXT,
    Unfit,
    Unreadable,
    read_call,
    same_call,
    text_argument,
    write_command,
)
from agentmill.synthesis.verifiers.answer_match import AnswerMatch

if TYPE_CHECKING:
    from agentmill.synthesis.environments.search.index import PassageIndex

RESULTS, MOST_RESULTS = 5, 20
"""Passages that a search shows, by default and at most."""
SEPARATOR = ";"
"""Between the parts of an answer that needs several."""
_MATCH = AnswerMatch.model_validate({})
"""Compares answers as the verifier does by default."""


def _tool(name: str, description: str, properties: JsonObject, required: list[str]) -> Tool:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return Tool(name=name, description=description, parameters=parameters)


_TEXT: JsonObject = {"type": "string", "maxLength": MAX_TEXT}
TOOLS = [
    _tool(
        "search",
        "Finds passages by words. Shows their ids, titles and snippets, best first.",
        {"query": _TEXT, "k": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "default": RESULTS}},
        ["query"],
    ),
    _tool("open", "Shows the whole of a passage.", {"id": _TEXT}, ["id"]),
    _tool("answer", "Hands in the answer and ends the search.", {"text": _TEXT}, ["text"]),
]
RULES = "\n".join(
    [
        "Find the answer in a collection of texts. It can be searched by words; passages can be opened by their id.",
        f"Answer with what was asked for and nothing else; separate several answers by {SEPARATOR!r}.",
        'Calls are written as tool_name(argument=3, other="text"). The tools:',
        f"search(query, k): {TOOLS[0].description} k is optional, {RESULTS} unless given, {MOST_RESULTS} at most.",
        *(f"{tool.name}({', '.join(tool.parameters['properties'])}): {tool.description}" for tool in TOOLS[1:]),
    ]
)


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be answered, and passages that must have been seen."""

    answer: str | int | float | list[str | int | float]
    every: bool = False
    seen: list[str] = []

    @property
    def answers(self) -> list[str | int | float]:
        """The gold answers."""
        return self.answer if isinstance(self.answer, list) else [self.answer]


class State(Record):
    """What was seen, in order of ids, what was answered, and how many actions of the gold solution were followed."""

    seen: tuple[str, ...] = ()
    answer: str | None = None
    progress: int = 0


class SearchEnvironment:
    """Questions over a corpus of texts, with tools to search it, to open passages and to answer.

    Raises ``EnvError`` for a source that names no corpus, or one that is missing or changed.
    """

    lists_admissible = False
    extra = "envs-search"

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.tools = TOOLS
        self.rules = RULES
        with missing_modules_explained():
            from agentmill.synthesis.environments.search.index import open_index
        try:
            source = read_source(spec)
            self.index: PassageIndex = open_index(source.path, source.digest)
        except (UserError, ValueError) as error:
            raise EnvError(f"environment {spec.environment_id}: {error}") from error
        self._task: Task | None = None
        self._goal = Goal("")
        self._state = State()

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """Nothing is seen yet. Raises ``EnvError`` for a task whose goal is no answer."""
        try:
            self._goal = msgspec.convert(task.goal, Goal)
        except msgspec.ValidationError as error:
            raise EnvError(f"task {task.task_id}: {error}") from error
        if not [each for each in self._goal.answers if str(each).strip()]:
            raise EnvError(f"task {task.task_id}: its goal has no answer")
        self._task, self._state = task, State()
        return TextObservation(content=f"{len(self.index):,} passages can be searched.", source="environment")

    def step(self, action: AnyAction) -> Transition:
        """One call, as such or as text."""
        task = self._current_task()
        if self._state.answer is not None:
            return refusal("The search is over, and nothing more can be done.")
        try:
            call = read_call(action)
            shown, state = self._carry_out(call)
        except (Unfit, Unreadable) as error:
            return refusal(str(error))
        gold = task.gold or []
        followed = self._state.progress < len(gold) and same_call(gold[self._state.progress], call)
        self._state = msgspec.structs.replace(state, progress=state.progress + followed)
        done = state.answer is not None
        reward = float(self.check().passed) if done else 0.0
        return Transition(
            observation=TextObservation(content=shown, source="environment"), reward=reward, terminated=done
        )

    def state_digest(self) -> str:
        """Digest of what was seen and answered."""
        self._current_task()
        return digest(list(self._state.seen), self._state.answer)

    def snapshot(self) -> bytes:
        """JSON: the task's id and the state."""
        return msgspec.json.encode([self._current_task().task_id, self._state], order="deterministic")

    def restore(self, snapshot: bytes) -> None:
        """Raises ``EnvError`` for a snapshot of another task."""
        try:
            task_id, state = msgspec.json.decode(snapshot, type=tuple[str, State])
        except msgspec.DecodeError as error:
            raise EnvError(f"this is no snapshot of a search: {error}") from error
        if task_id != self._current_task().task_id:
            raise EnvError("the snapshot is of another task")
        self._state = state

    def check(self) -> Check:
        """``score`` is the share of answers that are right; with passages to be seen, half is for these.

        It passes where both are whole. Without an answer the passages alone count, as progress.
        """
        self._current_task()
        goal, state = self._goal, self._state
        right = 0.0 if state.answer is None else share_right(goal, state.answer)
        seen = [name for name in goal.seen if name in state.seen]
        share = len(seen) / len(goal.seen) if goal.seen else 1.0
        score = (right + share) / 2 if goal.seen else right
        evidence = {"answer": state.answer, "right": right, "seen": seen, "missed": len(goal.seen) - len(seen)}
        return Check(passed=right == share == 1.0, score=score, evidence=evidence)

    def admissible(self) -> list[ApiAction]:
        """Nothing: there is no end of queries."""
        return []

    def command(self, action: ApiAction) -> str:
        """The call as text. Raises ``ValueError`` for a tool that does not exist."""
        if action.function not in {tool.name for tool in self.tools}:
            raise ValueError(f"there is no tool {action.function!r}")
        return write_command(action.function, action.kwargs)

    def expert(self) -> ApiAction | None:
        """The next action of the gold solution; other actions in between take nothing away from it."""
        gold = self._current_task().gold or []
        if self._state.answer is not None or self._state.progress >= len(gold):
            return None
        action = gold[self._state.progress]
        return action if isinstance(action, ApiAction) else None

    def close(self) -> None:
        """Nothing is held: the index is shared by the environments of a process."""

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """A small corpus of invented articles, with a question of one step and one of two."""
        return examples()

    def _current_task(self) -> Task:
        if self._task is None:
            raise EnvError("the environment was not reset")
        return self._task

    def _carry_out(self, call: ApiAction) -> tuple[str, State]:
        """What is shown, and the state after it. Raises ``Unfit``."""
        tool = next((tool for tool in self.tools if tool.name == call.function), None)
        if tool is None:
            known = ", ".join(each.name for each in self.tools)
            raise Unfit(f"There is no tool {call.function!r}; there are {known}.")
        k = call.kwargs.get("k", RESULTS)
        # Models write 3.0 for 3, and JSON Schema takes both for whole numbers.
        k = int(k) if isinstance(k, float) and k.is_integer() else k
        if isinstance(k, int) and not 1 <= k <= MOST_RESULTS:
            raise Unfit(f"search: k is {k}; a search shows 1 to {MOST_RESULTS} passages.")
        if wrong := misfit(call, tool):
            raise Unfit(f"{tool.name}: {wrong[:200]}; it takes {', '.join(tool.parameters['properties'])}.")
        name = tool.parameters["required"][0]
        text = text_argument(call.kwargs[name], f"{tool.name}: the argument {name!r}")
        state = self._state
        if tool.name == "answer":
            return "The search is over.", msgspec.structs.replace(state, answer=text)
        return self._search(text, k) if tool.name == "search" else self._open(text)

    def _search(self, query: str, k: int) -> tuple[str, State]:
        hits = self.index.search(query, k)
        if not hits:
            return "No passage has any of these words.", self._state
        lines = [f"[{hit.id}] {hit.title}: {hit.snippet}" for hit in hits]
        return "\n".join(lines), self._having_seen([hit.id for hit in hits])

    def _open(self, name: str) -> tuple[str, State]:
        found = self.index.open(name) or self.index.open(name.strip().strip("[]"))
        if found is None:
            raise Unfit(f"There is no passage {name[:80]!r}. Search first, and open an id that it shows.")
        part = "" if found.parts == 1 else f" (part {found.number} of {found.parts} of {found.document})"
        return f"{found.title}{part}\n{found.text}", self._having_seen([found.id])

    def _having_seen(self, names: list[str]) -> State:
        return msgspec.structs.replace(self._state, seen=tuple(sorted({*self._state.seen, *names})))


def share_right(goal: Goal, answer: str) -> float:
    """1 for one of the gold answers, compared as ``answer_match`` does; with ``every`` the share of them given.

    More parts than there are gold answers count against it, or listing everything would be right.
    """
    same = _MATCH.score_of
    if not goal.every:
        return max(same(answer, gold) for gold in goal.answers)
    parts = [part for part in answer.split(SEPARATOR) if part.strip()]
    right = sum(any(same(part, gold) == 1.0 for part in parts) for gold in goal.answers)
    return right / max(len(goal.answers), len(parts))
