"""Wrappers of toolboxes: the same database, tasks and solutions, under harder or more helpful circumstances.

``wrap_environment`` makes a new spec, ``wrap_task`` a task of it; the solution is played in the wrapped environment,
with a call repeated where a fault meets it and questions asked where an argument is hidden, and must be accepted there.
A request that the new policy forbids becomes a task to refuse it, with the rule as the answer.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.toolbox.changes import Settings
from agentmill.synthesis.environments.toolbox.environment import FAULT, ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import ASK_USER, FINISH, Toolbox, read_toolbox, write_toolbox
from agentmill.synthesis.environments.toolbox.user import Request, hideable
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import plain
from agentmill.synthesis.generators.toolbox_wrap.policy import policy_words, with_policy
from agentmill.synthesis.generators.toolbox_wrap.twins import is_retired, with_distractors, with_twins

OPERATOR = "wrap_env"


class Wrapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is put around a toolbox: tools with a twin, tools of another matter, the level of a policy (0: none), slots
    that the user keeps back per task, the share of calls that fail once; hints with refusals, rewards on the way.

    ``user``: what is kept back is answered by the tool ``ask_user``, or by a person, who finds it in ``goal.user``."""

    twins: int = 0
    distractors: int = 0
    policy: int = 0
    hidden: int = 0
    faults: float = 0.0
    hints: bool = False
    milestones: bool = False
    user: Literal["tool", "person"] = "tool"

    @property
    def asks(self) -> bool:
        """Whether the agent asks by the tool ``ask_user``."""
        return self.hidden > 0 and self.user == "tool"


def wrap_environment(spec: EnvironmentSpec, wrapping: Wrapping, seed: int) -> EnvironmentSpec:
    """The wrapped toolbox; same spec, wrapping and seed, same result. Raises ``ToolboxError``."""
    environment_id = _identity(spec.environment_id, wrapping, seed)
    chance = random.Random(derive_seed(OPERATOR, environment_id))
    toolbox = read_toolbox(spec.source)
    twins: dict[str, list[str]] = {}
    if wrapping.twins:
        toolbox, twins = with_twins(toolbox, wrapping.twins, chance)
    if wrapping.policy:
        toolbox = with_policy(toolbox, wrapping.policy, chance)
    if wrapping.distractors:
        toolbox = with_distractors(toolbox, wrapping.distractors, chance)
    settings = Settings(wrapping.hints, wrapping.milestones, wrapping.faults, wrapping.asks)
    notes = {"wrapping": plain(wrapping), "twins": twins}
    return msgspec.structs.replace(
        spec,
        environment_id=environment_id,
        name=f"{spec.name}-wrapped",
        source=write_toolbox(toolbox),
        parameters=plain(settings),
        structure_digest=digest(toolbox_structure(toolbox), wrapping),
        admission=None,
        lineage=Lineage(operator=OPERATOR, parents=[spec.environment_id], seed=seed, notes=notes),
    )


def wrap_task(task: Task, wrapped: EnvironmentSpec, wrapping: Wrapping, seed: int) -> Task | GenerationError:
    """``task`` in a wrapped toolbox, or why it has none there."""
    toolbox = read_toolbox(wrapped.source)
    task_id = digest(OPERATOR, task.task_id, wrapped.environment_id)
    chance = random.Random(derive_seed(OPERATOR, task_id, seed))
    request = msgspec.convert(task.initial_state.get("request"), Request)
    goal = msgspec.convert(task.goal, Goal, str_keys=True)
    gold = [action for action in task.gold or [] if isinstance(action, ApiAction)]
    if toolbox.rules:
        request = msgspec.structs.replace(request, template=f"{request.template} {policy_words().aside}")
        found = _allowed(task, goal, gold, wrapped, toolbox)
        if isinstance(found, GenerationError):
            return found
        goal, gold = found
    hidden = _hidden(request, gold, wrapping.hidden, chance)
    request = msgspec.structs.replace(request, hidden=tuple(hidden))
    asking = [_ask(request.slots[name].label) for name in hidden] if wrapping.asks else []
    asked = tuple(hidden) if wrapping.asks else ()
    user = msgspec.structs.replace(request, hidden=()).text() if wrapping.user == "person" else ""
    retired = tuple(twin for twin in _twins(wrapped) if is_retired(twin))
    changed = msgspec.structs.replace(
        task,
        task_id=task_id,
        environment_id=wrapped.environment_id,
        instruction=request.text(),
        initial_state={**task.initial_state, "request": plain(request)},
        goal=plain(msgspec.structs.replace(goal, asked=asked, forbidden=retired, user=user)),
        gold=[*asking, *gold],
        structure_digest=digest(task.structure_digest, wrapped.structure_digest, sorted(hidden)),
        admission=None,
        lineage=Lineage(operator=OPERATOR, parents=[task.task_id], seed=seed),
    )
    return _proved(changed, wrapped)


def _allowed(
    task: Task, goal: Goal, gold: list[ApiAction], wrapped: EnvironmentSpec, toolbox: Toolbox
) -> tuple[Goal, list[ApiAction]] | GenerationError:
    """Goal and solution under the policy: the old ones, or those of a refusal."""
    # Without faults, so that each call of the solution is carried out the first time.
    environment = ToolboxEnvironment(msgspec.structs.replace(wrapped, parameters={}))
    environment.reset(msgspec.structs.replace(task, goal={}), 0)
    broken: tuple[str, ...] = ()
    writes = {tool.name for tool in toolbox.tools if tool.writes}
    for action in gold:
        environment.step(action)
        broken = broken or environment.violations()
    environment.close()
    if not broken:
        return goal, gold
    changing = [number for number, action in enumerate(gold) if action.function in writes]
    if len(changing) > 1 or goal.answers or len(broken) > 1:
        return GenerationError("policy_forbids_a_part", f"{', '.join(broken)} forbids a part of what is asked for")
    # An answer that lists all rules is a guess.
    others = tuple(rule.name for rule in toolbox.rules if rule.name != broken[0])
    refusal = ApiAction(function=FINISH, kwargs={"answer": broken[0]})
    return Goal(answers=(Answer(broken[0], others),)), [*gold[: changing[0]], refusal]


def _twins(wrapped: EnvironmentSpec) -> list[str]:
    """The near-duplicates that wrapping added."""
    notes: dict[str, list[str]] = wrapped.lineage.notes.get("twins", {}) if wrapped.lineage else {}
    return [twin for twins in notes.values() for twin in twins]


def _hidden(request: Request, gold: list[ApiAction], n: int, chance: random.Random) -> list[str]:
    """Up to ``n`` slots that can be kept back together and that a call of the solution needs; who refuses a request
    at once has nothing to ask."""
    needed = {str(value) for action in gold if action.function != FINISH for value in action.kwargs.values()}
    free = [name for name in hideable(request) if request.slots[name].text in needed]
    return sorted(chance.sample(free, min(n, len(free))))


def _ask(label: str) -> ApiAction:
    return ApiAction(function=ASK_USER, kwargs={"question": f"What is the {label}?"})


def _proved(task: Task, wrapped: EnvironmentSpec) -> Task | GenerationError:
    """The task with its solution as it must be played, faults included."""
    environment = ToolboxEnvironment(wrapped)
    environment.reset(task, 0)
    played: list[AnyAction] = []
    try:
        for action in task.gold or []:
            transition = environment.step(action)
            played.append(action)
            # A call never fails twice, so one repetition is enough.
            if FAULT in str(getattr(transition.observation, "content", "")):
                transition = environment.step(action)
                played.append(action)
            if transition.error:
                return GenerationError("gold_rejected", str(getattr(transition.observation, "content", "")))
        check = environment.check()
    finally:
        environment.close()
    if not check.passed:
        return GenerationError("gold_rejected", f"not passed in the wrapped environment: {check.evidence}")
    spare = len(played) - len(task.gold or [])
    return msgspec.structs.replace(task, gold=played, max_turns=task.max_turns + 2 * (spare + len(played)))


def _identity(environment_id: str, wrapping: Wrapping, seed: int) -> str:
    return digest(OPERATOR, environment_id, plain(wrapping), seed)
