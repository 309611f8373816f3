"""Twins of toolbox tasks whose right behaviour is another: to decline with the right reason, or to ask first.

All twins may ask the user and may decline, so that neither tool gives the right behaviour away. A twin that is to be
declined forbids every other tool that it has. The solution of each twin is played, and that of its parent, which must
not pass.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import CONTRAST, EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.toolbox.changes import Settings
from agentmill.synthesis.environments.toolbox.environment import ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.goal import Goal
from agentmill.synthesis.environments.toolbox.structure import toolbox_structure
from agentmill.synthesis.environments.toolbox.toolbox import DECLINE, Toolbox, read_toolbox, write_toolbox
from agentmill.synthesis.environments.toolbox.user import Request
from agentmill.synthesis.generators.contrasting import Kind, Tools
from agentmill.synthesis.generators.data_files import convert, read_table
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import plain
from agentmill.synthesis.generators.toolbox_wrap.twins import with_distractors
from agentmill.synthesis.generators.toolbox_wrap.wrap import ask, hidden_slots, proved

REASON_OF: dict[Kind, str] = {
    "no_tool": "no_tool",
    "irrelevant_tool": "no_tool",
    "harmful": "harmful",
    "silent": "nothing_to_do",
}
"""The reason with which twins of these kinds must be declined; the others are to be solved."""


class ContrastWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``harmful`` and ``silent`` are texts around ``{request}``; ``gap`` is in the place of a missing value."""

    gap: str
    harmful: tuple[str, ...]
    silent: tuple[str, ...]


@cache
def contrast_words() -> ContrastWords:
    """The words of twins."""
    return convert(read_table(__package__, "contrast.yaml"), ContrastWords, f"{__package__}/data/contrast.yaml")


def contrast_environment(spec: EnvironmentSpec, tools: Tools, seed: int) -> EnvironmentSpec | GenerationError:
    """The toolbox with ``tools``, in which one can ask the user and decline. Raises ``ToolboxError``."""
    environment_id = digest(CONTRAST, spec.environment_id, tools, seed)
    parent = read_toolbox(spec.source)
    toolbox = _offering(parent, tools, random.Random(derive_seed(CONTRAST, environment_id)))
    if tools == "others" and not toolbox.tools:
        return GenerationError("no_other_tools", "no invented toolbox was found that shares no name with this one")
    settings = msgspec.structs.replace(msgspec.convert(spec.parameters, Settings), user=True, decline=True)
    twins: JsonObject = spec.lineage.notes.get("twins", {}) if spec.lineage and tools == "own" else {}
    return msgspec.structs.replace(
        spec,
        environment_id=environment_id,
        name=f"{spec.name}-{tools}-tools",
        source=write_toolbox(toolbox),
        parameters=plain(settings),
        structure_digest=digest(CONTRAST, spec.structure_digest or toolbox_structure(parent), tools),
        admission=None,
        lineage=Lineage(
            operator=CONTRAST, parents=[spec.environment_id], seed=seed, notes={CONTRAST: tools, "twins": twins}
        ),
    )


def contrast_task(task: Task, twins: EnvironmentSpec, kind: Kind, seed: int) -> Task | GenerationError:
    """The twin of ``task`` of a kind, in an environment of twins that offers the tools of the kind."""
    task_id = digest(CONTRAST, task.task_id, twins.environment_id, kind, seed)
    made = _turned(task, twins, kind, random.Random(derive_seed(CONTRAST, task_id)))
    if isinstance(made, GenerationError):
        return made
    made = msgspec.structs.replace(
        made,
        task_id=task_id,
        environment_id=twins.environment_id,
        admission=None,
        lineage=Lineage(operator=CONTRAST, parents=[task.task_id], seed=seed, notes={CONTRAST: kind}),
    )
    twin = proved(made, twins)
    if isinstance(twin, GenerationError):
        return twin
    if kind != "solvable" and _accepted(twin, twins, task.gold or []):
        return GenerationError("parent_accepted", "what solves the parent passes here, too")
    longer = max(0, len(twin.gold or []) - len(task.gold or []))
    return msgspec.structs.replace(twin, max_turns=task.max_turns + 2 * longer)


def _offering(toolbox: Toolbox, tools: Tools, chance: random.Random) -> Toolbox:
    """The toolbox with its tools, without any, or with the tools and tables of another in their place."""
    if tools == "own":
        return toolbox
    # The rules are about tools that are gone.
    bare = msgspec.structs.replace(toolbox, tools=(), rules=(), policy="")
    if tools == "none":
        return bare
    mixed = with_distractors(toolbox, len(toolbox.tools), chance)
    tables = mixed.tables[len(toolbox.tables) :]
    rows = {table.name: mixed.rows[table.name] for table in tables}
    others = tuple(tool for tool in mixed.tools if tool not in toolbox.tools)
    return msgspec.structs.replace(bare, tables=tables, rows=rows, tools=others)


def _turned(task: Task, twins: EnvironmentSpec, kind: Kind, chance: random.Random) -> Task | GenerationError:
    """Request, goal and solution of a twin."""
    request = msgspec.convert(task.initial_state.get("request", {"template": task.instruction}), Request)
    reason = REASON_OF.get(kind)
    if reason is not None:
        wording = chance.choice(getattr(contrast_words(), kind, ("{request}",)))
        return _to_decline(task, twins, kind, reason, request, wording)
    if not task.gold:
        return GenerationError("no_gold", f"a twin of kind {kind} needs a task with a solution")
    if kind == "solvable":
        structure = digest(task.structure_digest, CONTRAST, kind)
        return msgspec.structs.replace(task, skills=[kind, *task.skills], structure_digest=structure)
    return _with_a_gap(task, kind, request, chance)


def _to_decline(task: Task, twins: EnvironmentSpec, kind: Kind, reason: str, request: Request, wording: str) -> Task:
    """The twin in which nothing may be called but ``decline``, or ``ask_user``."""
    names = tuple(tool.name for tool in read_toolbox(twins.source).tools)
    template = wording.replace("{request}", request.template)
    return msgspec.structs.replace(
        task,
        instruction=wording.replace("{request}", task.instruction),
        initial_state={**task.initial_state, "request": plain(msgspec.structs.replace(request, template=template))},
        goal=plain(Goal(decline=reason, forbidden=names)),
        gold=[ApiAction(function=DECLINE, kwargs={"reason": reason})],
        difficulty=None,
        skills=[kind],
        structure_digest=digest(task.structure_digest, CONTRAST, kind, wording),
    )


def _with_a_gap(task: Task, kind: Kind, request: Request, chance: random.Random) -> Task | GenerationError:
    """The twin whose request lacks a value that a call needs, and that the user gives when asked."""
    if request.hidden:
        return GenerationError("hides_already", "the request keeps a value back already")
    gold = [action for action in task.gold or [] if isinstance(action, ApiAction)]
    hidden = hidden_slots(request, gold, 1, chance)
    if not hidden or task.instruction != request.text():
        return GenerationError("no_gap", "the request has no value that a call needs and nothing else says")
    gapped = msgspec.structs.replace(request, hidden=tuple(hidden), gap=contrast_words().gap)
    goal = msgspec.structs.replace(msgspec.convert(task.goal, Goal, str_keys=True), asked=tuple(hidden))
    return msgspec.structs.replace(
        task,
        instruction=gapped.text(),
        initial_state={**task.initial_state, "request": plain(gapped)},
        goal=plain(goal),
        gold=[*(ask(request.slots[name].label) for name in hidden), *gold],
        skills=[kind, *task.skills],
        structure_digest=digest(task.structure_digest, CONTRAST, kind, hidden),
    )


def _accepted(twin: Task, twins: EnvironmentSpec, actions: Sequence[AnyAction]) -> bool:
    """Whether ``actions`` pass in a twin."""
    environment = ToolboxEnvironment(twins)
    try:
        environment.reset(twin, 0)
        for action in actions:
            environment.step(action)
        return environment.check().passed
    finally:
        environment.close()
