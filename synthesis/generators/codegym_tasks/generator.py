"""Tasks for coding problems: inputs are drawn, the reference solution says the answer, and the oracle plays the gold.

A task is kept where both come to the same. Its gold solution are the calls of the oracle, which knows what an agent
knows; its length decides whether the input is of the right size.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from string import Template
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import Difficulty, EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.codegym.problem import SUBMIT, Problem, ProblemError, read_problem
from agentmill.synthesis.environments.codegym.structure import problem_structure, task_structure
from agentmill.synthesis.environments.codegym.workshop import Draw, Failure, Run, Workshop
from agentmill.synthesis.environments.interpreter.goal import same
from agentmill.synthesis.generators.generator import GenerationError, check_direction, is_on_side, too_few

SIZES = (2, 12)
"""Of inputs, in the terms of their problem: about how many things there are."""

LEAST_SIZE = 1
"""Of inputs where none of the others has a solution of the length that is wanted."""

ROUNDS = 5
"""So many batches of inputs in a row without a new task show that there are no more."""
MOST_AT_ONCE = 100
"""Inputs that go into an interpreter, whose processor time is limited."""
SPARE_DRAWS = 2
"""Inputs that are drawn per task wanted."""

LEAST_CALLS = 2
"""One of them ``submit``: what can be said without a call is no task."""

REACH = 10
"""How many calls longer a harder variant may be."""

HALF_LEVEL_EFFORT = 24.0
"""The effort at which the level is one half."""


class Case(Record):
    """An input with its answer, and what the oracle did."""

    seed: int
    size: int
    draw: Draw
    answer: Any
    run: Run

    @property
    def length(self) -> int:
        """Calls of the solution, ``submit`` among them."""
        return len(self.run.calls) + 1


class CodegymTaskGenerator:
    """Proposes tasks whose solutions are ``plan_length`` = (least, most) calls long, ``submit`` among them."""

    def __init__(self, plan_length: tuple[int, int] = (2, 8)) -> None:
        least, most = plan_length
        if not 1 <= least <= most or most < LEAST_CALLS:
            raise UserError(
                f"plan_length is [{least}, {most}]; expected [least, most] with 1 <= least <= most >= {LEAST_CALLS}",
                ErrorCode.RANGE_EMPTY,
            )
        self._least, self._most = max(least, LEAST_CALLS), most

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """As ``proposals``."""
        for each in self.proposals(spec, n, seed):
            yield each

    def proposals(self, spec: EnvironmentSpec, n: int, seed: int) -> Iterator[Task | GenerationError]:
        """``n`` tasks or failures, no two tasks of the same structure; one failure for a spec that cannot be used."""
        wanted = f"a solution of {self._least} to {self._most} calls"

        def fits(case: Case) -> bool:
            return self._least <= case.length <= self._most

        def failure(made: int, lengths: Collection[int]) -> GenerationError:
            shown = f"solutions of {min(lengths)} to {max(lengths)} calls" if lengths else "no sound solution"
            sizes = f"sizes {LEAST_SIZE} to {SIZES[1]}"
            return too_few(made, n, wanted, f"{ROUNDS} batches of inputs of {sizes}, with {shown}, gave no more")

        lineage = Lineage(operator="propose", seed=derive_seed("propose", spec.environment_id, seed))
        yield from _tasks(spec, n, lineage, fits, set(), failure)

    async def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """``n`` variants or failures; solutions shorter than the parent's, longer, or (``other``) as long."""
        check_direction("codegym", direction)
        length = len(parent.gold or [])
        if not length:
            yield GenerationError("broken_parent", f"task {parent.task_id} has no gold solution to go by")
            return

        def fits(case: Case) -> bool:
            return LEAST_CALLS <= case.length <= length + REACH and is_on_side(case.length, length, direction)

        lineage = Lineage(
            operator="evolve",
            parents=[parent.task_id],
            seed=derive_seed("evolve", parent.task_id, direction, seed),
            notes={"direction": direction},
        )

        def failure(made: int, lengths: Collection[int]) -> GenerationError:
            del made, lengths
            return GenerationError(f"no_{direction}_task", f"no new {direction} variant in {ROUNDS} rounds")

        for each in _tasks(spec, n, lineage, fits, {parent.structure_digest}, failure, parent.split):
            yield each


def _tasks(
    spec: EnvironmentSpec,
    n: int,
    lineage: Lineage,
    fits: Callable[[Case], bool],
    seen: set[str | None],
    failure: Callable[[int, Collection[int]], GenerationError],
    split: str | None = None,
) -> Iterator[Task | GenerationError]:
    try:
        problem = read_problem(spec.source)
        structure = spec.structure_digest or problem_structure(problem)
        made, dry, lengths = 0, 0, set[int]()
        for cases in _batches(problem, n, lineage, fits, lengths):
            before = made
            for case in cases:
                task = _task(spec, problem, case, lineage, structure, split)
                if task.structure_digest in seen:
                    continue
                seen.add(task.structure_digest)
                yield task
                made += 1
                if made == n:
                    return
            dry = dry + 1 if made == before else 0
            if dry == ROUNDS:
                break
    except (ProblemError, Failure) as error:
        yield GenerationError("broken_environment", f"{error.reason}: {error}")
        return
    for _ in range(n - made):
        yield failure(made, lengths)


def _batches(
    problem: Problem, n: int, lineage: Lineage, fits: Callable[[Case], bool], lengths: set[int]
) -> Iterator[list[Case]]:
    """Inputs that fit and that the oracle solves, batch after batch, of sizes that did before; without end.

    ``lengths`` gets those of all solutions that needed a look. Raises ``Failure``.
    """
    chance = random.Random(lineage.seed)
    workshop, sizes, empty = Workshop(problem), list(range(SIZES[0], SIZES[1] + 1)), 0
    while True:
        seeds = [(chance.getrandbits(31), chance.choice(sizes)) for _ in range(SPARE_DRAWS * n + len(sizes))]
        cases = [
            case
            for start in range(0, len(seeds), MOST_AT_ONCE)
            for case in _played(workshop, seeds[start : start + MOST_AT_ONCE])
        ]
        sound = [
            case
            for case in cases
            if solved(problem, case.run, case.answer)
            # A task whose answer needs no call would reward guessing.
            and not any(same(guess, case.answer) for guess in guesses(problem, case.draw.given))
        ]
        lengths.update(case.length for case in sound)
        fitting = [case for case in sound if fits(case)]
        yield fitting
        empty = 0 if fitting else empty + 1
        sizes = sorted({case.size for case in fitting}) or sizes
        if empty == ROUNDS - 1:
            sizes = [LEAST_SIZE]  # nearly trivial inputs are the last resort


def _played(workshop: Workshop, seeds: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """The inputs of pairs of seed and size. Raises ``Failure``."""
    draws = workshop.draw(seeds)
    answers = workshop.solve([each.instance for each in draws])
    (runs,) = workshop.play(draws)
    for (seed, size), draw, answer, run in zip(seeds, draws, answers, runs, strict=True):
        yield Case(seed=seed, size=size, draw=draw, answer=answer, run=run)


def guesses(problem: Problem, given: JsonObject) -> list[Any]:
    """Answers that need no call: the empty one of the answer's type, and what the task shows."""
    if problem.answer is None:
        return []
    empty: dict[str, Any] = {"integer": 0, "number": 0, "string": "", "array": [], "object": {}, "boolean": False}
    kind = str(problem.answer.get("type"))
    return [*([empty[kind]] if kind in empty else []), *given.values()]


def solved(problem: Problem, run: Run, answer: Any) -> bool:
    """Whether an oracle came to the answer of the reference solution."""
    return same(run.answer if problem.answer is not None else run.outcome, answer)


def question(problem: Problem, given: JsonObject) -> str:
    """What is wanted. Raises ``Failure`` (``bad_question``) for a name that is not given, or given and not shown: an
    agent knows nothing but the question."""
    template = Template(problem.question)
    try:
        seeds = template.substitute(given)
    except (KeyError, ValueError) as error:
        raise Failure("bad_question", f"the question cannot be asked, as {error} is not given") from None
    untold = sorted(given.keys() - set(template.get_identifiers()))
    if untold:
        raise Failure("bad_question", f"the question does not tell ${', $'.join(untold)}, which the oracle is given")
    return seeds


def difficulty(length: int, instance: JsonObject) -> Difficulty:
    """Effort is the solution's length, weighed up by a quarter for every tenfold of values in the input."""
    effort = length * (1.0 + math.log10(1 + _values(instance)) / 4.0)
    return Difficulty(level=round(effort / (effort + HALF_LEVEL_EFFORT), 4), plan_length=length)


def _values(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_values(each) for each in value.values())
    return sum(_values(each) for each in value) if isinstance(value, list) else 1


def _task(
    spec: EnvironmentSpec, problem: Problem, case: Case, lineage: Lineage, structure: str, split: str | None
) -> Task:
    gold: list[AnyAction] = [ApiAction(function=name, kwargs=arguments) for name, arguments, _ in case.run.calls]
    handed = {} if problem.answer is None else {"answer": case.answer}
    gold.append(ApiAction(function=SUBMIT, kwargs=handed))
    called = [name for name, _, _ in case.run.calls]
    # A quarter more than the oracle took: an agent may miss, but cannot look at everything.
    budget = {name: called.count(name) + called.count(name) // 4 + 1 for name in problem.metered}
    notes = spec.lineage.notes if spec.lineage else {}
    drawn = {**lineage.notes, "draw": case.seed, "size": case.size}
    start: JsonObject = {"instance": case.draw.instance, "given": case.draw.given, "budget": budget}
    return Task(
        task_id=digest(lineage.operator, spec.environment_id, lineage.parents, lineage.seed, case.seed, case.size),
        environment_id=spec.environment_id,
        instruction=question(problem, case.draw.given),
        initial_state=start,
        goal={"answer": case.answer},
        gold=gold,
        difficulty=difficulty(len(gold), case.draw.instance),
        skills=sorted(notes.get("parts", [])),
        max_turns=2 * len(gold) + 6,
        structure_digest=task_structure(structure, start, gold),
        lineage=Lineage(operator=lineage.operator, parents=lineage.parents, seed=lineage.seed, notes=drawn),
        split=split,
    )
