"""Tasks for toolboxes, call first: a path of calls is carried out, and the request is written from it.

A task is a list of operations, each drawn from a seed of its own, so that a harder variant is the same list and one
operation more, an easier one a list without its end.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import Difficulty, EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.toolbox.changes import changes
from agentmill.synthesis.environments.toolbox.goal import Answer, Goal, numbers, tells
from agentmill.synthesis.environments.toolbox.toolbox import FINISH
from agentmill.synthesis.environments.toolbox.user import Request, Slot
from agentmill.synthesis.generators.generator import (
    GenerationError,
    check_direction,
    different_tasks,
    is_on_side,
    plan_range,
)
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox, plain, read_toolbox, shape
from agentmill.synthesis.generators.toolbox_tasks.operation import LOOK_UP, Operation, OperationSampler

TRIES = 8
MAX_OPERATIONS = 5
QUESTION = 0.35
LEAST_RIVALS = 3
"""How many other values a column must have to be all that a task asks for."""

REACH = 6
"""How many calls longer a harder variant may be."""

HALF_LEVEL_EFFORT = 14.0
"""The effort at which the level is one half."""

SPARE_TURNS = 6


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a task is drawn: ``operations`` many from ``draw``, the last one as ``variant``; ``by_key`` names keys.

    ``earlier`` are the variants of the operations before it, where any is not 0.
    """

    draw: int
    operations: int
    variant: int = 0
    by_key: bool = False
    earlier: tuple[int, ...] = ()

    def variants(self) -> list[int]:
        """The variant of each operation."""
        return [*(self.earlier or [0] * (self.operations - 1)), self.variant]

    def with_variants(self, variants: Sequence[int]) -> Plan:
        """As many operations as ``variants``, of these."""
        *earlier, last = variants
        return msgspec.structs.replace(
            self, operations=len(variants), variant=last, earlier=tuple(earlier) if any(earlier) else ()
        )


class ToolboxTaskGenerator:
    """Proposes tasks whose solutions are ``plan_length`` = (least, most) calls long, ``finish`` among them."""

    def __init__(self, plan_length: tuple[int, int] = (2, 8)) -> None:
        least, most = plan_range(plan_length)
        self._least, self._most = max(2, least), max(2, most)

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """As ``proposals``."""
        for each in self.proposals(spec, n, seed):
            yield each

    def proposals(self, spec: EnvironmentSpec, n: int, seed: int) -> Iterator[Task | GenerationError]:
        """``n`` tasks or failures, no two tasks of the same structure; one failure for a spec that cannot be used."""
        try:
            live = read_toolbox(spec)
        except EnvError as error:
            yield GenerationError("broken_environment", str(error))
            return
        seen: set[str | None] = set()
        with closing(live):

            def proposal(number: int) -> Task | GenerationError:
                return self._proposal(live, derive_seed("propose", spec.environment_id, seed, number), seen)

            yield from different_tasks(proposal, n, f"a solution of {self._least} to {self._most} calls", TRIES)

    async def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """``n`` variants or failures; solutions shorter than the parent's, longer, or (``other``) as long."""
        check_direction("toolbox", direction)
        try:
            live = read_toolbox(spec)
            plan = msgspec.convert((parent.lineage.notes if parent.lineage else {}).get("plan"), Plan)
        except (EnvError, msgspec.ValidationError) as error:
            yield GenerationError("broken_parent", f"task {parent.task_id} was not drawn from this toolbox: {error}")
            return
        seen = {parent.structure_digest}
        with closing(live):
            for number in range(n):
                variant_seed = derive_seed("evolve", parent.task_id, seed, number)
                yield self._variant(live, parent, plan, direction, variant_seed, seen)

    def _proposal(self, live: LiveToolbox, seed: int, seen: set[str | None]) -> Task | GenerationError:
        for attempt in range(TRIES):
            draw = derive_seed(seed, attempt)
            wanted = random.Random(draw).randint(self._least, self._most)
            operations = draw_operations(live, Plan(draw, MAX_OPERATIONS), wanted)
            lineage = Lineage(operator="propose", seed=seed, notes={"plan": plain(Plan(draw, len(operations)))})
            task = make_task(live, operations, digest("propose", live.spec.environment_id, seed), lineage)
            if task and self._least <= len(task.gold or []) <= self._most and task.structure_digest not in seen:
                seen.add(task.structure_digest)
                return task
        wanted_text = f"a solution of {self._least} to {self._most} calls"
        return GenerationError("no_new_task", f"no new task with {wanted_text} in {TRIES} tries")

    def _variant(
        self, live: LiveToolbox, parent: Task, plan: Plan, direction: str, seed: int, seen: set[str | None]
    ) -> Task | GenerationError:
        length = len(parent.gold or [])
        for attempt in range(TRIES):
            varied = _varied(plan, direction, derive_seed(seed, attempt))
            operations = draw_operations(live, varied)
            notes = {"direction": direction, "plan": plain(varied)}
            lineage = Lineage(operator="evolve", parents=[parent.task_id], seed=seed, notes=notes)
            task = make_task(live, operations, digest("evolve", parent.task_id, direction, seed), lineage)
            if task is None or task.structure_digest in seen or len(operations) != varied.operations:
                continue
            now = len(task.gold or [])
            if is_on_side(now, length, direction) and now <= length + REACH:
                seen.add(task.structure_digest)
                return msgspec.structs.replace(task, split=parent.split)
        detail = f"no new {direction} variant of a task of {length} calls in {TRIES} tries"
        return GenerationError(f"no_{direction}_task", detail)


def draw_operations(live: LiveToolbox, plan: Plan, length: int | None = None) -> list[Operation]:
    """The operations of a plan, carried out in ``live``; until there are ``length`` calls, where that is given."""
    live.reset()
    made: dict[str, int] = {}
    operations: list[Operation] = []
    # Each operation depends on its own variant, so that a variant shares all operations before it.
    for number, variant in enumerate(plan.variants()):
        chance = random.Random(derive_seed(plan.draw, number, variant))
        sampler = OperationSampler(live, chance, made, by_key=plan.by_key)
        operation = sampler.question() if chance.random() < QUESTION else sampler.change()
        if operation is None:
            break
        operations.append(operation)
        made |= [operation.made] if operation.made else []
        if length is not None and len(solution(operations)) >= length:
            break
    return operations


def calls_of(operations: Sequence[Operation]) -> list[Call]:
    """All calls in order, without what was looked up before."""
    calls: list[Call] = []
    for operation in operations:
        for call in operation.calls:
            # A look-up need not be repeated, a change may be wanted twice.
            if call.tool.writes or call.action not in [each.action for each in calls]:
                calls.append(call)
    return calls


def solution(operations: Sequence[Operation]) -> list[AnyAction]:
    """The calls, and the answer at the end."""
    calls = [call.action for call in calls_of(operations)]
    by_key = [f"{each.label}: {each.answer.value}" for each in operations if each.answer is not None]
    return [*calls, ApiAction(function=FINISH, kwargs={"answer": "; ".join(by_key)})]


def make_task(live: LiveToolbox, operations: list[Operation], task_id: str, lineage: Lineage) -> Task | None:
    """The task that asks for ``operations``, which ``live`` has gone through; ``None`` where it gives its answer away,
    can be guessed or leaves everything as it was without a question."""
    request = _request(operations)
    instruction = request.text()
    answers = tuple(operation.answer for operation in operations if operation.answer is not None)
    state = changes(live.toolbox, live.began_with(), live.contents())
    given_away = any(gives_away(instruction, answer) for answer in answers)
    alone = operations[0].answer if len(operations) == 1 and operations[0].skill == LOOK_UP else None
    guessed = alone is not None and len(alone.others) < LEAST_RIVALS
    # Two equal values in an answer cannot be distinguished.
    same_question = len({answer.value for answer in answers}) < len(answers)
    if not operations or given_away or guessed or same_question or not (state or answers):
        return None
    gold = solution(operations)
    return Task(
        task_id=task_id,
        environment_id=live.spec.environment_id,
        instruction=instruction,
        initial_state={"request": plain(request)},
        goal=plain(Goal(states=(state,), answers=answers)),
        gold=gold,
        difficulty=difficulty_of(operations, len(gold), len(live.toolbox.tools)),
        skills=sorted({operation.skill for operation in operations}),
        max_turns=2 * len(gold) + SPARE_TURNS,
        structure_digest=shape(
            live.structure,
            [operation.phrase.shape for operation in operations],
            [each.function for each in _calls(gold)],
        ),
        lineage=lineage,
    )


def gives_away(instruction: str, answer: Answer) -> bool:
    """Whether who has read the instruction knows the answer."""
    return tells(instruction, answer, "") or (isinstance(answer.value, int) and answer.value in numbers(instruction))


def difficulty_of(operations: list[Operation], n_calls: int, n_tools: int) -> Difficulty:
    """Effort is the number of calls, and half a call for each row that the way to a key leads over, a tenth for each
    row to choose from and a twentieth for each tool to choose from."""
    hops = sum(operation.hops for operation in operations)
    choices = sum(operation.choices for operation in operations)
    effort = n_calls + hops / 2 + choices / 10 + n_tools / 20
    return Difficulty(level=round(effort / (effort + HALF_LEVEL_EFFORT), 4), plan_length=n_calls)


def _calls(gold: list[AnyAction]) -> list[ApiAction]:
    return [action for action in gold if isinstance(action, ApiAction)]


def _request(operations: list[Operation]) -> Request:
    """All requests as sentences, slots numbered in their order."""
    sentences, slots = [], dict[str, Slot]()
    for number, operation in enumerate(operations):
        text = operation.phrase.template
        for name, slot in operation.phrase.slots.items():
            numbered = f"s{len(slots) + 1}"
            slots[numbered] = slot
            # Names of slots are random where they are made, and numbers let equal requests be equal.
            text = text.replace(f"{{{name}}}", f"{{{numbered}}}")
        sentences.append(f"{'Then ' if number else 'Please '}{text}.")
    return Request(" ".join(sentences), slots)


def _varied(plan: Plan, direction: str, seed: int) -> Plan:
    variants = plan.variants()
    if direction == "harder":
        return plan.with_variants([*variants, seed])
    if direction == "other":
        return plan.with_variants([*variants[:-1], seed])
    if plan.operations > 1:
        return plan.with_variants(variants[: 1 + seed % (plan.operations - 1)])
    return msgspec.structs.replace(plan, by_key=True)
