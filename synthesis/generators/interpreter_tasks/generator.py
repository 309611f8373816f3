"""Tasks for interpreter environments with tables: a question by steps, to be answered, or to be answered by a function.
Environments that a model wrote bring their tasks with them.

A task of ``n`` actions has a gold solution of ``n`` cells. Functions are checked on rows that the agent does not see.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.generators.data_files import fill
from agentmill.synthesis.generators.generator import GenerationError, check_direction, different_tasks, too_few
from agentmill.synthesis.generators.interpreter_procedural.generator import Row, Scheme, scheme_of
from agentmill.synthesis.generators.interpreter_tasks.steps import (
    AnyStep,
    AtLeast,
    Keep,
    Linked,
    Product,
    Question,
    Unclear,
    wordings,
)
from agentmill.synthesis.generators.interpreter_tasks.written import is_written, written_of
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of

TRIES = 60
"""How often a task is drawn anew before it is given up."""
LEAST_CELLS = 2
"""One to read the rows, one to answer."""
FUNCTION_CELLS = 3
"""One to look, one to define the function, one to submit, whatever its steps."""
HIDDEN_TABLES = 3
ROWS = (18, 40)
FUNCTION_SHARE = 0.25
FUNCTION = "answer_for"


class Plan(Record):
    """What a task is made of; in ``lineage.notes["plan"]``, so that variants can be made of it."""

    steps: list[AnyStep]
    question: Question
    as_function: bool
    data_seed: int


class InterpreterTaskGenerator:
    """Proposes tasks whose gold has ``plan_length`` = (least, most) cells, and evolves tasks by a step."""

    def __init__(self, plan_length: tuple[int, int] = (2, 8)) -> None:
        least, most = plan_length
        if not 1 <= least <= most or most < LEAST_CELLS:
            raise UserError(
                f"plan_length is [{least}, {most}]; expected [least, most] with most >= {LEAST_CELLS}",
                ErrorCode.RANGE_EMPTY,
            )
        self._least, self._most = max(least, LEAST_CELLS), most

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """``n`` tasks or failures, no two tasks of the same structure; one failure for an environment without tables or
        tasks.

        An environment that was written with tasks has these and no others.
        """
        if is_written(spec):
            for each in self._written(spec, n):
                yield each
            return
        try:
            scheme = scheme_of(spec)
        except ValueError as error:
            yield GenerationError("broken_environment", str(error))
            return
        seen: set[str | None] = set()

        def proposal(number: int) -> Task | GenerationError:
            return self._proposal(spec, scheme, derive_seed("propose", spec.environment_id, seed, number), seen)

        for each in different_tasks(proposal, n, f"a solution of {self._least} to {self._most} cells", TRIES):
            yield each

    async def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """``n`` variants or failures: a step less if ``easier``, one more if ``harder``, others if ``other``."""
        check_direction("interpreter", direction)
        try:
            scheme = scheme_of(spec)
            plan = msgspec.convert((parent.lineage.notes if parent.lineage else {}).get("plan"), Plan)
        except ValueError as error:
            yield GenerationError("broken_parent", f"task {parent.task_id} cannot be varied: {error}")
            return
        seen = {parent.structure_digest}
        for number in range(n):
            variant_seed = derive_seed("evolve", parent.task_id, direction, seed, number)
            lineage = Lineage(operator="evolve", parents=[parent.task_id], seed=variant_seed)
            made = _first(lambda chance: _varied(plan, scheme, direction, chance), spec, scheme, lineage, seen)
            if made is None:
                yield GenerationError(f"no_{direction}_task", f"no new {direction} variant in {TRIES} tries")
            else:
                yield msgspec.structs.replace(made, split=parent.split)

    def _written(self, spec: EnvironmentSpec, n: int) -> Iterator[Task | GenerationError]:
        try:
            written = written_of(spec)
        except ValueError as error:
            yield GenerationError("broken_environment", str(error))
            return
        numbers = [
            number for number, draft in enumerate(written.tasks) if self._least <= len(draft.solution) <= self._most
        ]
        yield from (written.task(number, spec) for number in numbers[:n])
        for _ in range(n - len(numbers)):
            wanted = f"a solution of {self._least} to {self._most} cells"
            yield too_few(len(numbers), n, wanted, f"it was written with {len(written.tasks)} tasks")

    def _proposal(
        self, spec: EnvironmentSpec, scheme: Scheme, seed: int, seen: set[str | None]
    ) -> Task | GenerationError:
        lineage = Lineage(operator="propose", seed=seed)
        made = _first(lambda chance: self._drawn(scheme, chance), spec, scheme, lineage, seen)
        return made or GenerationError("no_new_task", f"no new task with a clear answer in {TRIES} tries")

    def _drawn(self, scheme: Scheme, chance: random.Random) -> Plan | None:
        as_function = self._least <= FUNCTION_CELLS <= self._most and chance.random() < FUNCTION_SHARE
        return _draw(scheme, chance.randint(self._least, self._most) - LEAST_CELLS, as_function, chance)


def _first(
    draw: Callable[[random.Random], Plan | None],
    spec: EnvironmentSpec,
    scheme: Scheme,
    lineage: Lineage,
    seen: set[str | None],
) -> Task | None:
    """The first task with a clear answer and a new structure that is drawn in ``TRIES``."""
    assert lineage.seed is not None
    for attempt in range(TRIES):
        plan = draw(random.Random(derive_seed(lineage.seed, attempt)))
        structure = None if plan is None else _structure(spec, plan)
        if plan is None or structure in seen:
            continue
        try:
            task = _task(plan, spec, scheme, lineage)
        except Unclear:
            continue
        seen.add(structure)
        return msgspec.structs.replace(task, structure_digest=structure)
    return None


def _draw(scheme: Scheme, n_steps: int, as_function: bool, chance: random.Random) -> Plan | None:
    """A plan of so many steps; ``None`` where there are not as many kinds. A function has as many as there are."""
    pool = _steps(scheme, as_function, chance)
    if len(pool) < n_steps and not as_function:
        return None
    steps = chance.sample(pool, min(n_steps, len(pool)))
    return Plan(
        steps=steps,
        question=_question(scheme, steps, chance),
        as_function=as_function,
        data_seed=chance.getrandbits(31),
    )


def _varied(plan: Plan, scheme: Scheme, direction: str, chance: random.Random) -> Plan | None:
    """A plan with a step less or one more, over the same rows; ``None`` where there is none to drop or to add.

    ``other`` is another plan with as many steps.
    """
    if direction == "other":
        drawn = _draw(scheme, len(plan.steps), plan.as_function, chance)
        return drawn if drawn is not None and len(drawn.steps) == len(plan.steps) else None
    steps = list(plan.steps)
    if direction == "easier" and steps:
        steps.remove(chance.choice(steps))
    elif direction == "harder":
        taken = {_kind(step) for step in steps}
        more = [step for step in _steps(scheme, plan.as_function, chance) if _kind(step) not in taken]
        steps += chance.sample(more, min(1, len(more)))
    if len(steps) == len(plan.steps):
        return None
    return msgspec.structs.replace(plan, steps=steps, question=_question(scheme, steps, chance))


def _steps(scheme: Scheme, as_function: bool, chance: random.Random) -> list[AnyStep]:
    """One step of each kind there is. A function sees the rows of one table only."""
    steps: list[AnyStep] = [Keep(field=field, option=chance.choice(of)) for field, of in scheme.options.items()]
    for field, (low, high) in scheme.ranges.items():
        steps.append(AtLeast(field=field, bound=low + max(1, int((high - low) * chance.uniform(0.15, 0.45)))))
    one, other = chance.sample(list(scheme.ranges), 2)
    steps.append(Product(field=f"{one}_times_{other}", one=one, other=other))
    return steps if as_function else [*steps, Linked(option=chance.choice(scheme.attribute_options))]


def _question(scheme: Scheme, steps: list[AnyStep], chance: random.Random) -> Question:
    """A new field is asked for where there is one, so that no step is in vain."""
    made = [step.field for step in steps if isinstance(step, Product)]
    kept = {step.field for step in steps if isinstance(step, Keep)}
    by = chance.choice([field for field in (*scheme.options, scheme.link) if field not in kept])
    of = chance.choice(made or list(scheme.ranges))
    questions = [Question(kind=kind, of=of) for kind in ("total", "mean", "first")] + [
        Question(kind="leader", by=by, of=of)
    ]
    if not made:
        questions += [Question(kind="count"), Question(kind="kinds", by=by), Question(kind="tally", by=by)]
    return chance.choice(questions)


def _kind(step: AnyStep) -> tuple[str, str]:
    """What there may be one of."""
    return type(step).__name__, "" if isinstance(step, Product) else getattr(step, "field", "")


def _structure(spec: EnvironmentSpec, plan: Plan) -> str:
    """Equal for tasks of an environment that differ in their rows and bounds only."""
    question = plan.question
    return digest(
        spec.environment_id,
        [(*_kind(step), getattr(step, "option", "")) for step in plan.steps],
        (question.kind, question.by, question.of),
        plan.as_function,
    )


def _task(plan: Plan, spec: EnvironmentSpec, scheme: Scheme, lineage: Lineage) -> Task:
    """Raises ``Unclear``."""
    chance = random.Random(plan.data_seed)
    tables = scheme.draw(chance.randint(*ROWS), chance)
    answer = _answer(plan, tables, scheme)
    steps = " ".join(step.words(scheme) for step in plan.steps)
    goal: JsonObject = {"answer": answer}
    if plan.as_function:
        samples = [tables, *(scheme.draw(chance.randint(*ROWS), chance) for _ in range(HIDDEN_TABLES - 1))]
        goal = {"calls": [_call(plan, sample, scheme) for sample in samples]}
    pattern = wordings().tasks["function" if plan.as_function else "answer"].words
    words = {"TABLE": scheme.table, "STEPS": steps, "ASKED": plan.question.words(scheme), "FUNCTION": FUNCTION}
    gold = _gold(plan, scheme)
    difficulty = difficulty_of(len(plan.steps) + LEAST_CELLS, None)
    return Task(
        task_id=digest(lineage.operator, spec.environment_id, lineage.parents, lineage.seed),
        environment_id=spec.environment_id,
        instruction=" ".join(fill(pattern, words).split()),
        initial_state={"names": {"_tables": tables}},
        goal=goal,
        gold=gold,
        difficulty=msgspec.structs.replace(difficulty, plan_length=len(gold)),
        skills=sorted({*(type(step).__name__.lower() for step in plan.steps), plan.question.kind}),
        max_turns=2 * len(gold) + 6,
        lineage=msgspec.structs.replace(lineage, notes={"plan": msgspec.to_builtins(plan)}),
    )


def _answer(plan: Plan, tables: dict[str, list[Row]], scheme: Scheme) -> Any:
    """Raises ``Unclear``."""
    rows = tables[scheme.table]
    for step in plan.steps:
        rows = step.apply(rows, tables, scheme)
    return plan.question.answer(rows, scheme)


def _call(plan: Plan, tables: dict[str, list[Row]], scheme: Scheme) -> JsonObject:
    rows = tables[scheme.table]
    return {"function": FUNCTION, "arguments": {"rows": rows}, "value": _answer(plan, tables, scheme)}


def _gold(plan: Plan, scheme: Scheme) -> list[AnyAction]:
    """The solution cell by cell."""
    answer, steps = plan.question.code(scheme), [step.code(scheme) for step in plan.steps]
    first = fill(wordings().tasks["function" if plan.as_function else "answer"].code, {"TABLE": repr(scheme.table)})
    if plan.as_function:
        body = textwrap.indent("\n".join([*steps, f"return {answer}"]), "    ")
        cells = [first, f"def {FUNCTION}(rows):\n{body}", "submit()"]
    else:
        shown = [f"{code}\nlen(rows)" for code in (first, *steps)]
        cells = [*shown, f"submit({answer})"]
    return [ApiAction(function="python", kwargs={"code": code}) for code in cells]
