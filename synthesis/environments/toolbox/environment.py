"""Tools over a database: an agent serves a user by calls, and ends by telling what the user wanted to know.

``spec.source`` is the toolbox (``agentmill.synthesis.environments.toolbox.toolbox``), ``spec.parameters`` what wrappers
switched on. ``task.initial_state["request"]`` is what the user wants, ``task.goal`` what must be the case in the end.
Calls are answered with rows as JSON. ``finish`` ends the episode and holds the answer to the user, ``decline`` ends it
where nothing should be done; the reward then is 1 if the task is done. Without wrappers nothing depends on the seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, TextObservation
from agentmill.synthesis.environments.environment import Check, EnvError, Transition
from agentmill.synthesis.environments.toolbox.calls import (
    Unfit,
    Unmet,
    Unreadable,
    bind,
    only_text,
    read_call,
    same_call,
    schema_of,
    some_values,
    write_command,
)
from agentmill.synthesis.environments.toolbox.changes import Saved, Settings, State, changes
from agentmill.synthesis.environments.toolbox.database import Contents, Database, Refused
from agentmill.synthesis.environments.toolbox.examples import EXAMPLES
from agentmill.synthesis.environments.toolbox.goal import Goal, Outcome, judge
from agentmill.synthesis.environments.toolbox.toolbox import (
    ASK_USER,
    DECLINE,
    FINISH,
    Tool,
    Toolbox,
    ToolboxError,
    Value,
    read_toolbox,
)
from agentmill.synthesis.environments.toolbox.user import REASONS, Request, built_in, fill, reply, rules

FAULT = "The service did not answer in time and did nothing. Try the same call again."

_OVER = "The conversation is over."

_CALLS_TRIED = 8
"""How many calls of one tool are looked at for a list of legal ones."""


class ToolboxEnvironment:
    """Tools over a database, by which an agent does what a user wants.

    Raises ``EnvError`` for a toolbox that cannot be used.
    """

    lists_admissible = False

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        try:
            self.toolbox = _read(spec.source)
            self._settings = msgspec.convert(spec.parameters, Settings)
            self._schemas = [schema_of(self.toolbox, tool) for tool in self.toolbox.tools]
            self.database = Database(self.toolbox)
        except (ToolboxError, msgspec.ValidationError) as error:
            raise EnvError(f"environment {spec.environment_id}: {error}") from error
        self._named = {tool.name: tool for tool in self.toolbox.tools}
        self.tools = [*self._schemas, *built_in(self._settings)]
        self.rules = rules(self.toolbox, self.tools)
        self._start = self.database.contents()
        self._state = State()
        self._progress = 0
        self._task: Task | None = None
        self._goal = Goal()
        self._request = Request("")
        self._digested: tuple[Contents, str] | None = None
        self._gold_states: list[str] | None = None

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """The database as the toolbox says. The seed plays no part: which calls fail is the task's."""
        try:
            self._goal = msgspec.convert(task.goal, Goal, str_keys=True)
            self._request = msgspec.convert(task.initial_state.get("request", {"template": ""}), Request)
        except msgspec.ValidationError as error:
            raise EnvError(f"task {task.task_id}: {error}") from error
        self._task = task
        self._begin()
        self._gold_states = None
        return TextObservation(content="You are connected. Call a tool.", source="environment")

    def step(self, action: AnyAction) -> Transition:
        """One call, as such or as text."""
        task = self._current_task()
        before = self.check().score if self._settings.milestones else 0.0
        try:
            if self._state.answer is not None:
                raise Unfit("The conversation is over, and nothing more can be done.")
            call = read_call(action)
            shown = self._carry_out(call)
        except (Unfit, Unreadable) as error:
            return _refused({"error": str(error)})
        except Unmet as error:
            return _refused(error.refusal)
        gold = task.gold or []
        if self._progress < len(gold) and same_call(gold[self._progress], call):
            self._progress += 1
        done = self._state.answer is not None
        reward = 0.0
        if self._settings.milestones:
            reward = self.check().score - before
        elif done:
            reward = float(self.check().passed)
        observation = TextObservation(content=shown, source="user" if call.function == ASK_USER else "environment")
        return Transition(observation=observation, reward=reward, terminated=done)

    def state_digest(self) -> str:
        """Digest of all rows, the keys given out, what was answered, violated, asked for, and the faults met."""
        self._current_task()
        contents = self.database.contents()
        # The same object means that nothing was written since, and a digest of all rows is slow.
        if self._digested is None or self._digested[0] is not contents:
            self._digested = (contents, digest(contents, self.database.last_keys()))
        return digest(self._digested[1], self._state)

    def snapshot(self) -> bytes:
        """MessagePack: the database's image and the rest of the state."""
        saved = Saved(self._current_task().task_id, self._state, self._progress, self.database.image())
        return msgspec.msgpack.encode(saved)

    def restore(self, snapshot: bytes) -> None:
        """Raises ``EnvError`` for a snapshot of another task."""
        try:
            saved = msgspec.msgpack.decode(snapshot, type=Saved)
        except msgspec.DecodeError as error:
            raise EnvError(f"this is no snapshot of a toolbox: {error}") from error
        if saved.task_id != self._current_task().task_id:
            raise EnvError("the snapshot is of another task")
        self.database.restore(saved.image)
        self._state, self._progress = saved.state, saved.progress

    def check(self) -> Check:
        """The goal and the state compared, as ``agentmill.synthesis.environments.toolbox.goal.judge`` does."""
        instruction = self._current_task().instruction
        state = self._state
        found = changes(self.toolbox, self._start, self.database.contents())
        outcome = Outcome(found, state.answer, state.violations, state.asked, state.declined or "")
        return judge(self._goal, outcome, instruction)

    def admissible(self) -> list[ApiAction]:
        """Legal calls: of each tool a few, with values that are in the tables, and each end without an answer."""
        self._current_task()
        if self._state.answer is not None:
            return []
        calls = [call for tool in self.toolbox.tools for call in self._legal(tool)]
        reasons = REASONS if self._settings.decline else ()
        declining = [ApiAction(function=DECLINE, kwargs={"reason": reason}) for reason in reasons]
        return [*calls, ApiAction(function=FINISH, kwargs={"answer": ""}), *declining]

    def command(self, action: ApiAction) -> str:
        """The call as text. Raises ``ValueError`` for a tool that does not exist."""
        if action.function not in {tool.name for tool in self.tools}:
            raise ValueError(f"there is no tool {action.function!r}")
        return write_command(action.function, action.kwargs)

    def expert(self) -> ApiAction | None:
        """The next action of the gold solution, as long as the state is the one that it leads to.

        None where a person knows what it rests on: the expert could not know its arguments.
        """
        if self._goal.user:
            return None
        gold = [action for action in self._current_task().gold or [] if isinstance(action, ApiAction)]
        if self._progress >= len(gold) or self._state.answer is not None:
            return None
        # Only where an expert is asked: the gold solution is played for it.
        if self._gold_states is None:
            self._gold_states = self._states_of(gold)
        on_the_way = (
            self._progress < len(self._gold_states) and self._gold_states[self._progress] == self.state_digest()
        )
        return gold[self._progress] if on_the_way else None

    def close(self) -> None:
        """Free the database."""
        self.database.close()

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """Two small databases, one of them with every wrapper that the environment knows."""
        return EXAMPLES

    def attempt(self, tool: Tool, values: dict[str, Value]) -> list[dict[str, Value]]:
        """Carry out a call of a tool with fitting values. Raises ``Unmet``."""
        for requirement in tool.requires:
            if not self._holds(requirement.query, values):
                shown = {"error": fill(requirement.message, values)}
                if self._settings.hints and requirement.hint:
                    shown["hint"] = fill(requirement.hint, values)
                raise Unmet(shown)
        # Asked before the call, whose writes could change what a rule asks for.
        broken = [
            rule.name for rule in self.toolbox.rules if rule.tool == tool.name if not self._holds(rule.query, values)
        ]
        try:
            rows = self.database.call(tool, values)
        except Refused as error:
            raise Unmet({"error": f"the database refuses this call: {error}"}) from error
        broken += [f"tool {tool.name}"] if tool.name in self._goal.forbidden else []
        if broken:
            violations = tuple(sorted({*self._state.violations, *broken}))
            self._state = msgspec.structs.replace(self._state, violations=violations)
        return rows

    def violations(self) -> tuple[str, ...]:
        """The rules that were broken so far."""
        return self._state.violations

    def forgive(self) -> None:
        """Forget the violations; for who tries calls out and undoes them."""
        self._state = msgspec.structs.replace(self._state, violations=())

    def _current_task(self) -> Task:
        if self._task is None:
            raise EnvError("the environment was not reset")
        return self._task

    def _begin(self) -> None:
        self.database.reset()
        self._state = State()
        self._progress = 0

    def _carry_out(self, call: ApiAction) -> str:
        """What is answered. Raises ``Unfit``, ``Unmet``."""
        if call.function == FINISH:
            self._state = msgspec.structs.replace(self._state, answer=only_text(call, "answer"))
            return _OVER
        if call.function == DECLINE and self._settings.decline:
            reason = only_text(call, "reason")
            if reason not in REASONS:
                raise Unfit(f"{DECLINE}: the argument 'reason' must be one of {', '.join(REASONS)}.")
            self._state = msgspec.structs.replace(self._state, answer="", declined=reason)
            return _OVER
        if call.function == ASK_USER and self._settings.user:
            reply_text, shown = reply(self._request, only_text(call, "question"))
            asked = tuple(sorted({*self._state.asked, *shown}))
            self._state = msgspec.structs.replace(self._state, asked=asked)
            return reply_text
        tool = self._named.get(call.function)
        if tool is None:
            raise Unfit(f"There is no tool {call.function!r}; there are {', '.join(each.name for each in self.tools)}.")
        values = bind(self.toolbox, tool, call.kwargs)
        if self._fails(call):
            return _json({"error": FAULT})
        return _json(self.attempt(tool, values))

    def _fails(self, call: ApiAction) -> bool:
        """Whether a call meets a fault: by the task and the call alone, and never twice."""
        if not self._settings.faults:
            return False
        name = digest(self._current_task().task_id, call.function, call.kwargs)
        if name in self._state.failed or derive_seed("fault", name) >= self._settings.faults * 2**31:
            return False
        self._state = msgspec.structs.replace(self._state, failed=tuple(sorted({*self._state.failed, name})))
        return True

    def _holds(self, query: str, values: dict[str, Value]) -> bool:
        try:
            return self.database.holds(query, values)
        except Refused:
            return False

    def _legal(self, tool: Tool) -> Iterator[ApiAction]:
        contents = self.database.contents()
        choices = [some_values(self.toolbox, parameter, contents) for parameter in tool.parameters]
        names = [parameter.name for parameter in tool.parameters]
        state = self._state
        for values in itertools.islice(itertools.product(*choices), _CALLS_TRIED):
            arguments = dict(zip(names, values, strict=True))
            try:
                bound = bind(self.toolbox, tool, arguments)
                with self.database.trial():
                    self.attempt(tool, bound)
            except (Unmet, Unfit):
                continue
            finally:
                # An attempt notes the rules that it breaks, and these were only tried.
                self._state = state
            yield ApiAction(function=tool.name, kwargs=arguments)

    def _states_of(self, gold: list[ApiAction]) -> list[str]:
        """The digest before each action of the gold solution, as far as it can be carried out."""
        saved = self.snapshot()
        self._begin()
        states = []
        for action in gold:
            states.append(self.state_digest())
            if self.step(action).error:
                break
        self.restore(saved)
        return states


@lru_cache(maxsize=256)
def _read(source: str) -> Toolbox:
    return read_toolbox(source)


def _refused(shown: JsonObject) -> Transition:
    return Transition(observation=TextObservation(content=_json(shown), source="environment"), error=True)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
