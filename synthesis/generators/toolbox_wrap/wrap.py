"""Wrappers of toolboxes: the same database, tasks and solutions, under harder or more helpful circumstances.

``wrap_environment`` makes a new spec, ``wrap_task`` a task of it; the solution is played in the wrapped environment,
with a call repeated where a fault meets it and questions asked where an argument is hidden, and must be accepted there.
A request that the new policy forbids becomes a task to refuse it, with the rule as the answer.
"""

from __future__ import annotations

import random

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import CONTRAST, EnvironmentSpec, Lineage, Task, contrast_of
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.toolbox.changes import Settings
from agentmill.synthesis.environments.toolbox.environment import FAULT, ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal
from agentmill.synthesis.environments.toolbox.lint import lint
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import ASK_USER, FINISH, Toolbox, read_toolbox, write_toolbox
from agentmill.synthesis.environments.toolbox.user import Request, hideable
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.renaming.renaming import NOTE as RENAMING
from agentmill.synthesis.generators.renaming.renaming import renaming_of
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import plain
from agentmill.synthesis.generators.toolbox_wrap.policy import policy_words, with_policy
from agentmill.synthesis.generators.toolbox_wrap.rename import rename_task, rename_toolbox, toolbox_renaming
from agentmill.synthesis.generators.toolbox_wrap.twins import is_retired, with_distractors, with_twins
from agentmill.synthesis.generators.wrapping import (
    NOTE,
    OPERATOR,
    Wrapping,
    wrapped_environment_id,
    wrapped_task_id,
)

WRAPPED_ALREADY = "wrapped_already"
"""The reason of what other wrappers than ``rename`` would take from an environment or a task that is wrapped."""
IN_ONE_STEP = "give all wrappers but `rename` in one step, before `contrast`"


def wrap_environment(spec: EnvironmentSpec, wrapping: Wrapping, seed: int) -> EnvironmentSpec | GenerationError:
    """The wrapped toolbox, or why there is none; same spec, wrapping and seed, same result. Raises ``ToolboxError``."""
    environment_id = wrapped_environment_id(spec.environment_id, wrapping, seed)
    chance = random.Random(derive_seed(OPERATOR, environment_id))
    others = wrapping.without_rename()
    toolbox = read_toolbox(spec.source)
    if others != Wrapping() and (replaced := _replaced(spec, toolbox, others)):
        what = f"the environment has {', '.join(replaced)} already, which these wrappers would replace"
        return GenerationError(WRAPPED_ALREADY, f"{what}: {IN_ONE_STEP}")
    toolbox, twins = _with_tools(toolbox, others, chance)
    notes: JsonObject = {NOTE: wrapping.note()}
    parameters, structure = spec.parameters, spec.structure_digest
    if others != Wrapping():
        parameters = plain(Settings(wrapping.hints, wrapping.milestones, wrapping.faults, wrapping.asks))
        structure = digest(toolbox_structure(toolbox), others.note())
    else:
        twins = spec.lineage.notes.get("twins", {}) if spec.lineage else {}
    if wrapping.rename is not None:
        # Last, so that what the other wrappers added is renamed as well.
        # A draw of its own: else a word would mean much the same in all environments, and be learned by heart.
        drawn = derive_seed(environment_id)
        renaming = toolbox_renaming(toolbox, spec.lineage, wrapping.rename, wrapping.names, drawn)
        sound, toolbox = _defect(toolbox) is None, rename_toolbox(toolbox, renaming)
        twins = {renaming.text(tool): [renaming.text(twin) for twin in named] for tool, named in twins.items()}
        notes[RENAMING] = renaming.note()
        if sound and (defect := _defect(toolbox)) is not None:
            return GenerationError("renaming_invalid", f"under other names the toolbox is broken: {defect}")
    return msgspec.structs.replace(
        spec,
        environment_id=environment_id,
        name=f"{spec.name}-wrapped",
        source=write_toolbox(toolbox),
        parameters=parameters,
        structure_digest=structure,
        admission=None,
        lineage=Lineage(operator=OPERATOR, parents=[spec.environment_id], seed=seed, notes={**notes, "twins": twins}),
    )


def wrap_task(task: Task, wrapped: EnvironmentSpec, wrapping: Wrapping, seed: int) -> Task | GenerationError:
    """``task`` in a wrapped toolbox, or why it has none there."""
    task_id = wrapped_task_id(task.task_id, wrapped.environment_id)
    kind = contrast_of(task.lineage)
    notes: JsonObject = {} if kind is None else {CONTRAST: kind}
    lineage = Lineage(operator=OPERATOR, parents=[task.task_id], seed=seed, notes=notes)
    # First, since what the other wrappers do is done in the renamed toolbox.
    renamed = rename_task(task, renaming_of(wrapped.lineage)) if wrapping.rename is not None else task
    others = wrapping.without_rename() != Wrapping()
    changed = _harder(renamed, task_id, wrapped, wrapping, seed) if others else renamed
    if isinstance(changed, GenerationError):
        return changed
    changed = msgspec.structs.replace(
        changed, task_id=task_id, environment_id=wrapped.environment_id, admission=None, lineage=lineage
    )
    made = proved(changed, wrapped)
    if isinstance(made, GenerationError):
        return made
    # Other names need no more turns; faults, questions and a policy do.
    spare = 2 * len(made.gold or []) if others else 0
    longer = 2 * (len(made.gold or []) - len(changed.gold or []))
    return msgspec.structs.replace(made, max_turns=task.max_turns + longer + spare)


def _replaced(spec: EnvironmentSpec, toolbox: Toolbox, wrapping: Wrapping) -> list[str]:
    """What the environment has of earlier wrappers, or of ``contrast``, that ``wrapping`` would replace."""
    notes = spec.lineage.notes if spec.lineage else {}
    # A later rename keeps parameters, twins and rules, but not the note of the wrappers before it.
    hidden = msgspec.convert(notes.get(NOTE, {}), Wrapping).hidden > 0
    policy = bool(toolbox.rules) and (wrapping.policy > 0 or NOTE in notes)
    found = {"twins": bool(notes.get("twins")), "policy": policy, "hidden": hidden, **spec.parameters}
    return [name for name, given in found.items() if given]


def _with_tools(toolbox: Toolbox, wrapping: Wrapping, chance: random.Random) -> tuple[Toolbox, dict[str, list[str]]]:
    """The toolbox with what ``wrapping`` adds to it; and the twins of its tools."""
    twins: dict[str, list[str]] = {}
    if wrapping.twins:
        toolbox, twins = with_twins(toolbox, wrapping.twins, chance)
    if wrapping.policy:
        toolbox = with_policy(toolbox, wrapping.policy, chance)
    if wrapping.distractors:
        toolbox = with_distractors(toolbox, wrapping.distractors, chance)
    return toolbox, twins


def _harder(
    task: Task, task_id: str, wrapped: EnvironmentSpec, wrapping: Wrapping, seed: int
) -> Task | GenerationError:
    """Request, goal and solution of a task under a policy, with details kept back and traps to be avoided."""
    toolbox = read_toolbox(wrapped.source)
    chance = random.Random(derive_seed(OPERATOR, task_id, seed))
    request = msgspec.convert(task.initial_state.get("request", {"template": task.instruction}), Request)
    goal = msgspec.convert(task.goal, Goal, str_keys=True)
    gold = [action for action in task.gold or [] if isinstance(action, ApiAction)]
    if request.hidden:
        return GenerationError(WRAPPED_ALREADY, f"the user of the task keeps details back already: {IN_ONE_STEP}")
    if toolbox.rules:
        request = msgspec.structs.replace(request, template=f"{request.template} {policy_words().aside}")
        found = _allowed(task, goal, gold, wrapped, toolbox)
        if isinstance(found, GenerationError):
            return found
        goal, gold = found
    hidden = hidden_slots(request, gold, wrapping.hidden, chance)
    request = msgspec.structs.replace(request, hidden=tuple(hidden))
    asking = [ask(request.slots[name].label) for name in hidden] if wrapping.asks else []
    asked = tuple(hidden) if wrapping.asks else ()
    user = msgspec.structs.replace(request, hidden=()).text() if wrapping.user == "person" else ""
    retired = tuple(twin for twin in _twins(wrapped) if is_retired(twin))
    return msgspec.structs.replace(
        task,
        instruction=request.text(),
        initial_state={**task.initial_state, "request": plain(request)},
        goal=plain(msgspec.structs.replace(goal, asked=asked, forbidden=retired, user=user)),
        gold=[*asking, *gold],
        structure_digest=digest(task.structure_digest, wrapped.structure_digest, sorted(hidden)),
    )


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


def hidden_slots(request: Request, gold: list[ApiAction], n: int, chance: random.Random) -> list[str]:
    """Up to ``n`` slots that can be kept back together and that a call of the solution needs; who refuses a request
    at once has nothing to ask."""
    needed = {str(value) for action in gold if action.function != FINISH for value in action.kwargs.values()}
    free = [name for name in hideable(request) if request.slots[name].text in needed]
    return sorted(chance.sample(free, min(n, len(free))))


def ask(label: str) -> ApiAction:
    """The question for a slot."""
    return ApiAction(function=ASK_USER, kwargs={"question": f"What is the {label}?"})


def proved(task: Task, wrapped: EnvironmentSpec) -> Task | GenerationError:
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
    return msgspec.structs.replace(task, gold=played)


def _defect(toolbox: Toolbox) -> str | None:
    """What is wrong with a toolbox, if anything."""
    return next((defect for _, found in lint(toolbox) for defect in found), None)
