"""Planning environments: a PDDL domain as an environment that speaks English.

``spec.source`` is the domain's PDDL text, ``spec.parameters`` its wording
(``agentmill.synthesis.environments.pddl.wording``); ``task.initial_state["problem"]`` is the problem's PDDL text. An
observation tells the state after ``reset`` and then what changed. What an addition provably excludes is not denied
besides ("the crate is on the truck" need not say that it is no longer at the dock). ``terminated`` is reaching the
goal, with reward 1; dead ends are not ends.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, TextObservation
from agentmill.synthesis.environments.environment import UNMET, Check, EnvError, Transition, refusal
from agentmill.synthesis.environments.pddl.domain import (
    EQUALS,
    OBJECT,
    Action,
    Domain,
    Literal,
    PddlError,
    Problem,
    objects_by_type,
)
from agentmill.synthesis.environments.pddl.examples import EXAMPLES
from agentmill.synthesis.environments.pddl.exclusion import exclusions
from agentmill.synthesis.environments.pddl.grounding import Grounded, bits, ground
from agentmill.synthesis.environments.pddl.planner import plan
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.wording import Call, Misunderstood, Wording

_MAX_LISTED = 8
"""How many objects a refusal names."""


class PreparedProblem(msgspec.Struct, frozen=True, eq=False):
    """A problem made ready; shared by all instances, so read only. ``key`` is the digest of what never changes."""

    problem: Problem
    grounded: Grounded
    excluded: tuple[int, ...]
    members: dict[str, tuple[str, ...]]
    numbers: dict[Call, int]
    key: str


class PddlEnvironment:
    """Planning tasks with commands and a planner: a PDDL domain, described in English.

    Raises ``EnvError`` for a domain or a wording that cannot be used.
    """

    extra = "envs-pddl"

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        try:
            self._domain = read_domain(spec.source)
            self._wording = Wording(self._domain, spec.parameters)
        except (PddlError, ValueError) as error:
            raise EnvError(f"environment {spec.environment_id}: {error}") from error
        self._schemas = {action.name: action for action in self._domain.actions}
        self.tools = self._wording.tools()
        self.rules = self._wording.rules
        self._loaded: PreparedProblem | None = None
        self._state = 0
        self._advice: dict[int, int | None] = {}

    def reset(self, task: Task, seed: int) -> TextObservation:  # noqa: ARG002 - part of the contract
        """The initial state in sentences. The seed plays no part: a planning environment has no chance in it."""
        text = task.initial_state.get("problem")
        if not isinstance(text, str):
            raise EnvError(f"task {task.task_id}: initial_state['problem'] is not a PDDL text")
        try:
            self._loaded = _load(self._domain, text)
        except PddlError as error:
            raise EnvError(f"task {task.task_id}: {error}") from error
        self._state = self._loaded.grounded.init
        self._advice = {}
        self._follow_gold(task)
        grounded = self._loaded.grounded
        static = [atom for atom in self._loaded.problem.init if atom in grounded.static]
        facts = self._wording.paragraph([*grounded.true_atoms(self._state), *static])
        return TextObservation(content=facts or "There is nothing to see.", source="environment")

    def step(self, action: AnyAction) -> Transition:
        """One action of the domain, as a call or as a command."""
        prepared = self._prepared()
        try:
            call = self._understand(action)
        except Misunderstood as error:
            return refusal(str(error))
        number = prepared.numbers.get(call)
        if number is None or not self._legal(number):
            return refusal(self._why_not(call))
        before, self._state = self._state, prepared.grounded.apply(self._state, number)
        done = prepared.grounded.is_goal(self._state)
        observation = TextObservation(content=self._changes_since(before), source="environment")
        return Transition(observation=observation, reward=1.0 if done else 0.0, terminated=done)

    def state_digest(self) -> str:
        """Digest of the objects and of all atoms that hold."""
        prepared = self._prepared()
        return digest(prepared.key, prepared.grounded.true_atoms(self._state))

    def snapshot(self) -> bytes:
        """JSON: which problem, and the state as hexadecimal digits."""
        return msgspec.json.encode({"problem": self._prepared().key, "state": f"{self._state:x}"})

    def restore(self, snapshot: bytes) -> None:
        """Raises ``EnvError`` for a snapshot of another problem."""
        try:
            saved = msgspec.json.decode(snapshot, type=dict[str, str])
            key, state = saved["problem"], int(saved["state"], 16)
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise EnvError(f"this is no snapshot of a planning world: {error}") from error
        # The bits of a state mean other atoms in another problem.
        if key != self._prepared().key:
            raise EnvError("the snapshot is of another problem")
        self._state = state

    def check(self) -> Check:
        """``score`` is the share of the goal's literals that hold; ``evidence["unmet"]`` are the others in words."""
        prepared = self._prepared()
        goal = prepared.problem.goal
        unmet = [literal for literal in goal if not self._holds(literal)]
        score = (len(goal) - len(unmet)) / len(goal) if goal else 1.0
        sentences = [self._wording.sentence((x.predicate, *x.arguments), positive=x.positive) for x in unmet]
        return Check(passed=not unmet, score=score, evidence={UNMET: sentences})

    def admissible(self) -> list[ApiAction]:
        """All legal actions, in the order of declaration."""
        grounded = self._prepared().grounded
        return [self._api_action(number) for number in grounded.applicable(self._state)]

    def command(self, action: ApiAction) -> str:
        """The action as text. Raises ``ValueError`` for a call that is none of an action."""
        try:
            return self._wording.command(self._wording.call(action.function, action.kwargs))
        except Misunderstood as error:
            raise ValueError(str(error)) from error

    def expert(self) -> ApiAction | None:
        """The next action of the task's gold plan or of the planner's; ``None`` at the goal and where it finds none."""
        # Planning is slow, so the whole plan is remembered by state.
        if self._state not in self._advice:
            # Also where there is no plan, so that the search is not repeated.
            self._advice[self._state] = None
            found = plan(self._prepared().grounded, start=self._state).plan
            self._follow(self._state, found or [])
        number = self._advice[self._state]
        return None if number is None else self._api_action(number)

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def examples() -> list[tuple[EnvironmentSpec, Task]]:
        """Two small environments that use every supported feature."""
        return EXAMPLES

    def _prepared(self) -> PreparedProblem:
        if self._loaded is None:
            raise EnvError("the environment was not reset")
        return self._loaded

    def _understand(self, action: AnyAction) -> Call:
        """Of several calls that a command may mean, the first legal one, else the first of fitting types."""
        if isinstance(action, CodeAction):
            raise Misunderstood("Code is not run here. Write one command.")
        if isinstance(action, ApiAction):
            return self._wording.call(action.function, action.kwargs)
        calls = self._wording.read(action.content)
        numbers = self._prepared().numbers
        legal = [call for call in calls if call in numbers and self._legal(numbers[call])]
        fitting = [call for call in calls if not self._misfit(call)]
        return (legal or fitting or calls)[0]

    def _legal(self, number: int) -> bool:
        action = self._prepared().grounded.actions[number]
        return self._state & (action.needs | action.forbids) == action.needs

    def _holds(self, literal: Literal) -> bool:
        if literal.predicate == EQUALS:
            return (literal.arguments[0] == literal.arguments[1]) == literal.positive
        atom = (literal.predicate, *literal.arguments)
        return self._prepared().grounded.holds(self._state, atom) == literal.positive

    def _misfit(self, call: Call) -> str:
        """What is wrong with the words of a call; empty if they are objects of the right types."""
        members = self._prepared().members
        for parameter, word in zip(self._schemas[call.action].parameters, call.arguments, strict=True):
            options = members[parameter.type]
            if word not in options:
                kind = parameter.type if parameter.type != OBJECT else "thing"
                listed = ", ".join(options[:_MAX_LISTED]) + (", ..." if len(options) > _MAX_LISTED else "")
                return f"{word} is no {kind} (there is {listed or 'none'})"
        return ""

    def _why_not(self, call: Call) -> str:
        misfit = self._misfit(call)
        if misfit:
            return self._wording.refusal(call, [misfit])
        needed = [
            _bind(literal, self._schemas[call.action], call) for literal in self._schemas[call.action].precondition
        ]
        reasons = list(dict.fromkeys(self._wording.reason(literal) for literal in needed if not self._holds(literal)))
        return self._wording.refusal(call, reasons or ["that is impossible in this world"])

    def _changes_since(self, before: int) -> str:
        """What changed, without denials that the additions make plain."""
        prepared = self._prepared()
        added = [
            bit for bit in bits(self._state & ~before) if prepared.grounded.atoms[bit][0] not in self._wording.hidden
        ]
        implied = 0
        for bit in added:
            implied |= prepared.excluded[bit]
        gone = [prepared.grounded.atoms[bit] for bit in bits(before & ~self._state & ~implied)]
        return self._wording.paragraph([prepared.grounded.atoms[bit] for bit in added], gone) or "Done."

    def _api_action(self, number: int) -> ApiAction:
        action = self._prepared().grounded.actions[number]
        return ApiAction(function=action.name, kwargs=self._wording.arguments(Call(action.name, action.arguments)))

    def _follow_gold(self, task: Task) -> None:
        """Take the gold plan as advice where it is one: legal calls that lead to the goal."""
        prepared = self._prepared()
        actions = [action for action in task.gold or [] if isinstance(action, ApiAction | MessageAction)]
        start, numbers = self._state, []
        try:
            for action in actions:
                number = prepared.numbers.get(self._understand(action))
                if number is None or not self._legal(number):
                    break
                numbers.append(number)
                self._state = prepared.grounded.apply(self._state, number)
            if prepared.grounded.is_goal(self._state):
                self._follow(start, numbers)
        except Misunderstood:
            pass
        finally:
            self._state = start

    def _follow(self, state: int, numbers: list[int]) -> None:
        for number in numbers:
            self._advice[state] = number
            state = self._prepared().grounded.apply(state, number)


@lru_cache(maxsize=512)
def _load(domain: Domain, problem_text: str) -> PreparedProblem:
    problem = read_problem(problem_text, domain)
    grounded = ground(domain, problem)
    key = digest(msgspec.to_builtins(problem.objects), sorted(grounded.static), list(grounded.atoms))
    numbers = {Call(action.name, action.arguments): number for number, action in enumerate(grounded.actions)}
    return PreparedProblem(problem, grounded, exclusions(grounded), objects_by_type(domain, problem), numbers, key)


def _bind(literal: Literal, action: Action, call: Call) -> Literal:
    binding = dict(zip([parameter.name for parameter in action.parameters], call.arguments, strict=True))
    return Literal(literal.predicate, tuple(binding.get(term, term) for term in literal.arguments), literal.positive)
