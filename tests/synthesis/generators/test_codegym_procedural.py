"""Coding problems from the grammar, and tasks for them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.codegym.examples import COUNT, GAUGE, GAUGE_SPEC, PILES_SPEC
from agentmill.synthesis.environments.codegym.problem import read_problem
from agentmill.synthesis.environments.codegym.workshop import Workshop
from agentmill.synthesis.environments.conformance import CHECKS, MAKER, Subject
from agentmill.synthesis.generators.admission import admit_environment, admit_task, rejection, task_digest
from agentmill.synthesis.generators.codegym_procedural.composition import COLLECTIONS, questions
from agentmill.synthesis.generators.codegym_procedural.generator import KINDS, ProceduralGenerator, propose
from agentmill.synthesis.generators.codegym_tasks.generator import CodegymTaskGenerator, question
from agentmill.synthesis.generators.generator import GenerationError
from tests.errors import user_error
from tests.hash_seeds import printed
from tests.synthesis.environments.codegym.problems import rewritten
from tests.synthesis.generators.environments import inspiration

pytestmark = pytest.mark.slow


async def _all(made: Any) -> list[Any]:
    return [each async for each in made]


def proposed(spec: EnvironmentSpec, n: int, seed: int = 0, **options: Any) -> list[Any]:
    return asyncio.run(_all(CodegymTaskGenerator(**options).propose(spec, n, seed)))


def evolved(parent: Task, direction: str, n: int, seed: int = 0) -> list[Any]:
    return asyncio.run(_all(CodegymTaskGenerator().evolve(GAUGE_SPEC, parent, direction, n, seed)))


@pytest.fixture(scope="module")
def worlds() -> list[EnvironmentSpec]:
    return [propose(inspiration(), seed) for seed in range(120)]


def test_problems_differ_in_their_structure(worlds: list[EnvironmentSpec]) -> None:
    assert len({spec.structure_digest for spec in worlds}) >= 100
    assert len({spec.environment_id for spec in worlds}) == 120
    assert len({parts_of(spec)[0] for spec in worlds if len(parts_of(spec)) == 3}) >= 12
    assert asyncio.run(ProceduralGenerator().propose(inspiration(), 4)) == worlds[4]


def parts_of(spec: EnvironmentSpec) -> list[str]:
    assert spec.lineage is not None
    parts: list[str] = spec.lineage.notes["parts"]
    return parts


def test_every_kind_is_drawn_and_named_apart(worlds: list[EnvironmentSpec]) -> None:
    asked = {parts_of(spec)[-1] for spec in worlds}
    names = [each.name for collection in COLLECTIONS for each in questions(collection)]
    assert len(asked & set(names)) >= 35
    others = {parts_of(spec)[0] for spec in worlds} & {draw.__name__ for draw in KINDS}
    assert len(others) >= 6
    assert len(set(names)) == len(names)


def test_the_same_problem_in_another_theme_is_a_duplicate(worlds: list[EnvironmentSpec]) -> None:
    structures: dict[str, set[str | None]] = {}
    for seed, text in enumerate(["Bake bread in a kitchen.", "Repair the car engine."] * 20):
        spec = propose(inspiration(text, text), seed)
        structures.setdefault("-".join(parts_of(spec)), set()).add(spec.structure_digest)
    for spec in worlds:
        structures.setdefault("-".join(parts_of(spec)), set()).add(spec.structure_digest)
    assert {name for name, found in structures.items() if len(found) > 1} == set()


def test_all_that_the_oracle_is_given_is_told(worlds: list[EnvironmentSpec]) -> None:
    """By the question, as a task asks it: nothing else that is given reaches an agent."""
    told = 0
    for spec in worlds[:40]:
        problem = read_problem(spec.source)
        for draw in Workshop(problem).draw([(1, 4), (2, 9)]):
            asked = question(problem, draw.given)
            assert all(str(value) in asked for value in draw.given.values()), spec.name
            told += len(draw.given)
    assert told > 40


def test_inspiration_chooses_the_theme() -> None:
    text = "How does a nurse bring drugs to a patient?"
    assert {propose(inspiration(text), seed).name.partition("-")[0] for seed in range(10)} == {"ward"}


def test_problems_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from agentmill.synthesis.generators.codegym_procedural.generator import propose\n"
        "from tests.synthesis.generators.environments import inspiration\n"
        "for seed in range(4):\n    print(propose(inspiration(), seed))\n"
    )
    assert len(printed(program)) == 1


def test_problems_and_their_tasks_are_admitted(worlds: list[EnvironmentSpec]) -> None:
    for spec in worlds[:16]:
        assert rejection(admit_environment(spec)) is None, spec.name
        for task in proposed(spec, 2, plan_length=(3, 40)):
            report, gold, difficulty = admit_task(task, spec)
            assert rejection(report) is None, (task.instruction, report)
            assert gold is not None
            assert difficulty is not None
            assert 3 <= len(gold) == difficulty.plan_length <= 40


def test_problems_of_the_grammar_keep_the_contract(worlds: list[EnvironmentSpec]) -> None:
    kinds = {parts_of(spec)[0]: spec for spec in worlds}
    for spec in kinds.values():
        (task,) = proposed(spec, 1, plan_length=(3, 40))
        subject = Subject(spec=spec, task=task, seeds=(0,), maker=MAKER)
        for name in CHECKS.keys() - {"same_in_every_process"}:  # which starts processes, and is tried on the examples
            assert CHECKS[name](subject) == "", (spec.name, name)


def test_tasks_are_as_long_as_wanted_and_differ() -> None:
    for least, most in ((2, 5), (6, 8)):
        tasks = proposed(GAUGE_SPEC, 20, plan_length=(least, most))
        assert {len(task.gold) for task in tasks} <= set(range(least, most + 1))
        assert len({task.structure_digest for task in tasks}) == len({task.task_id for task in tasks}) == 20
        assert [task_digest(msgspec.structs.replace(task, structure_digest=None), GAUGE_SPEC) for task in tasks] == [
            task.structure_digest for task in tasks
        ]
    assert proposed(GAUGE_SPEC, 3) == proposed(GAUGE_SPEC, 3)
    assert proposed(GAUGE_SPEC, 3) != proposed(GAUGE_SPEC, 3, seed=1)


def test_longer_solutions_and_larger_inputs_are_harder() -> None:
    tasks = sorted(proposed(PILES_SPEC, 20, plan_length=(2, 60)), key=lambda task: len(task.gold))
    levels = [task.difficulty.level for task in tasks]
    assert levels[0] < 0.3 < 0.7 < levels[-1]
    assert all(0 <= level < 1 for level in levels)


def test_a_guess_without_a_call_fails_mostly(worlds: list[EnvironmentSpec]) -> None:
    """The best guess is one of the answers of the other tasks."""
    for spec in worlds[:12]:
        tasks = [task for task in proposed(spec, 12, plan_length=(3, 40)) if isinstance(task, Task)]
        answers = [task.goal["answer"] for task in tasks]
        if read_problem(spec.source).answer is not None:
            assert max(answers.count(answer) for answer in answers) <= 0.75 * len(answers), spec.name


def test_budgets_leave_room_but_not_for_all() -> None:
    for task in proposed(GAUGE_SPEC, 10, plan_length=(4, 8)):
        weighed = sum(action.function == "weigh" for action in task.gold)
        assert weighed < task.initial_state["budget"]["weigh"] < task.initial_state["given"]["jars"] + 2


def test_many_inputs_are_played_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time in a fresh interpreter, as its processor time is limited."""
    played, play = [], Workshop.play

    def counted(workshop: Workshop, draws: Any, rounds: int = 1) -> Any:
        played.append(len(draws))
        return play(workshop, draws, rounds)

    monkeypatch.setattr(Workshop, "play", counted)
    assert len(proposed(GAUGE_SPEC, 60, plan_length=(3, 40))) == 60
    assert played[:2] == [100, 31]


@pytest.mark.parametrize("direction", ["easier", "harder", "other"])
def test_variants_are_shorter_or_longer_or_others(direction: str) -> None:
    (parent,) = proposed(GAUGE_SPEC, 1, plan_length=(6, 6))
    variants = evolved(parent, direction, 3)
    lengths = [len(task.gold) for task in variants]
    assert all({"easier": length < 6, "harder": length > 6, "other": length == 6}[direction] for length in lengths)
    assert parent.structure_digest not in {task.structure_digest for task in variants}
    assert {task.lineage.parents[0] for task in variants} == {parent.task_id}
    assert all(rejection(admit_task(task, GAUGE_SPEC)[0]) is None for task in variants)


def test_what_cannot_be_made_is_said() -> None:
    (failure, *_) = proposed(GAUGE_SPEC, 2, plan_length=(50, 60))
    assert isinstance(failure, GenerationError)
    assert failure.reason == "too_few_tasks"
    (failure,) = proposed(msgspec.structs.replace(GAUGE_SPEC, source="{}"), 2)
    assert failure.reason == "broken_environment"
    (failure,) = proposed(rewritten(GAUGE, "instances", "3 * size", "size / 0"), 2)
    assert (failure.reason, "ZeroDivisionError" in failure.detail) == ("broken_environment", True)
    (failure,) = evolved(msgspec.structs.replace(COUNT, gold=None), "harder", 1)
    assert failure.reason == "broken_parent"
    with user_error("range-empty"):
        CodegymTaskGenerator((1, 1))
    with user_error("unknown-name", "sideways"):
        evolved(COUNT, "sideways", 1)


def test_tasks_where_solution_and_oracle_disagree_are_never_made() -> None:
    spec = rewritten(GAUGE, "solution", ">=", ">")
    assert {each.reason for each in proposed(spec, 3)} == {"too_few_tasks"}


def test_what_a_task_says_is_not_what_it_hides(worlds: list[EnvironmentSpec]) -> None:
    """The instruction and the rules, as an agent gets them."""
    hidden = 0
    for spec in worlds[:10]:
        (task,) = proposed(spec, 1, plan_length=(3, 40))
        environment = make(spec)
        told = f"{environment.rules} {task.instruction} {environment.reset(task, 0)}"
        environment.close()
        assert "$" not in told
        items = task.initial_state["instance"].get("items")
        assert items is None or str(items) not in told
        hidden += items is not None
    assert hidden > 3
