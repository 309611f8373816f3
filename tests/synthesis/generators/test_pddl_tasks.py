"""Tasks proposed and evolved: their plans have the wanted length, the real environment accepts them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of
from agentmill.synthesis.generators.pddl_tasks.generator import PddlTaskGenerator
from tests.errors import user_error
from tests.synthesis.generators.environments import ferry, grammar_environment

WORLDS = [grammar_environment(seed) for seed in range(8)] + [ferry()]


async def made(tasks: AsyncIterator[Task | GenerationError]) -> list[Task]:
    return [task async for task in tasks if isinstance(task, Task)]


def plays(spec: EnvironmentSpec, task: Task) -> int:
    """The number of gold actions after which the real environment says that the goal is reached."""
    environment = make(spec)
    environment.reset(task, 0)
    for number, action in enumerate(task.gold or [], start=1):
        transition = environment.step(action)
        assert not transition.error
        if transition.terminated:
            return number
    raise AssertionError("the gold plan does not reach the goal")


@pytest.mark.parametrize("spec", WORLDS, ids=lambda spec: spec.name)
async def test_proposed_tasks_have_gold_plans_within_the_knob(spec: EnvironmentSpec) -> None:
    tasks = await made(PddlTaskGenerator(plan_length=(2, 5)).propose(spec, 4, 0))
    assert len(tasks) >= 3
    assert len({task.structure_digest for task in tasks}) == len(tasks)
    for task in tasks:
        length = plays(spec, task)
        assert 2 <= length <= 5
        assert task.difficulty == difficulty_of(length, task.difficulty.expansions if task.difficulty else 0)
        assert task.max_turns == 2 * length + 4
        assert task.instruction.startswith("Goal: ")
        assert task.instruction.endswith(".")


@pytest.mark.parametrize("direction", ["easier", "harder", "other"])
@pytest.mark.parametrize("spec", WORLDS, ids=lambda spec: spec.name)
async def test_variants_lie_on_the_side_they_were_asked_for(spec: EnvironmentSpec, direction: str) -> None:
    generator = PddlTaskGenerator(plan_length=(3, 4))
    parent = (await made(generator.propose(spec, 1, 7)))[0]
    parent = msgspec.structs.replace(parent, split="held_out_tasks")
    variants = [each async for each in generator.evolve(spec, parent, direction, 2, 0)]
    assert len(variants) == 2
    tasks = [task for task in variants if isinstance(task, Task)]
    assert tasks
    for task in tasks:
        length, before = plays(spec, task), plays(spec, parent)
        assert {"easier": length < before, "harder": before < length <= before + 4, "other": length == before}[
            direction
        ]
        assert task.split == "held_out_tasks"
        assert task.lineage is not None
        assert task.lineage.parents == [parent.task_id]
        assert task.lineage.notes["direction"] == direction


async def test_harder_variants_may_have_more_objects() -> None:
    parent, spec = (await made(PddlTaskGenerator().propose(WORLDS[0], 1, 0)))[0], WORLDS[0]
    variants = await made(PddlTaskGenerator().evolve(spec, parent, "harder", 6, 0))
    methods = {task.lineage.notes["method"] for task in variants if task.lineage}
    assert methods == {"further_goal", "more_objects"}
    domain = read_domain(spec.source)
    sizes = {
        task.lineage.notes["method"]: len(read_problem(task.initial_state["problem"], domain).objects)
        for task in variants
        if task.lineage
    }
    assert sizes["more_objects"] == sizes["further_goal"] + 1


async def test_other_variants_have_another_goal_of_the_same_kind_or_another_start() -> None:
    (parent,), spec = await made(PddlTaskGenerator((3, 4)).propose(WORLDS[3], 1, 7)), WORLDS[3]
    domain = read_domain(spec.source)
    before = read_problem(parent.initial_state["problem"], domain)
    methods = set()
    for task in await made(PddlTaskGenerator().evolve(spec, parent, "other", 4, 0)):
        assert task.lineage is not None
        now = read_problem(task.initial_state["problem"], domain)
        methods.add(task.lineage.notes["method"])
        assert (now.goal == before.goal) == (now.init != before.init)
        assert sorted(each.predicate for each in now.goal) == sorted(each.predicate for each in before.goal)
    assert methods == {"other_goal", "other_start"}


async def test_nothing_is_easier_than_one_action() -> None:
    spec = ferry()
    parent = (await made(PddlTaskGenerator(plan_length=(1, 1)).propose(spec, 1, 0)))[0]
    failures = [each async for each in PddlTaskGenerator().evolve(spec, parent, "easier", 2, 0)]
    assert [getattr(failure, "reason", None) for failure in failures] == ["no_easier_task", "no_easier_task"]


async def test_a_small_world_runs_out_of_new_tasks_and_says_so() -> None:
    found = [each async for each in PddlTaskGenerator(plan_length=(1, 1)).propose(ferry(), 30, 0)]
    reasons = {each.reason for each in found if isinstance(each, GenerationError)}
    assert len(found) == 30
    assert reasons == {"too_few_tasks"}
    tasks = [each for each in found if isinstance(each, Task)]
    (detail,) = {each.detail for each in found if isinstance(each, GenerationError)}
    assert f"has {len(tasks)} different tasks with a plan of 1 to 1 actions" in detail
    assert f"lower n to {len(tasks)}" in detail


async def test_seeds_decide() -> None:
    generator = PddlTaskGenerator()
    first = await made(generator.propose(WORLDS[1], 3, 0))
    assert first == await made(generator.propose(WORLDS[1], 3, 0))
    other = await made(generator.propose(WORLDS[1], 3, 1))
    assert {task.task_id for task in first}.isdisjoint(task.task_id for task in other)


async def test_broken_input_is_a_failure_among_the_values() -> None:
    broken = ferry({"(docked ?from)": "(dockd ?from)"})
    failures = [each async for each in PddlTaskGenerator().propose(broken, 3, 0)]
    assert [getattr(failure, "reason", None) for failure in failures] == ["broken_environment"]
    stray = Task(task_id="t", environment_id="ferry", instruction="", initial_state={"problem": "(define)"})
    failures = [each async for each in PddlTaskGenerator().evolve(ferry(), stray, "harder", 3, 0)]
    assert [getattr(failure, "reason", None) for failure in failures] == ["broken_parent"]


async def test_mistakes_of_the_user_are_named() -> None:
    with user_error("range-empty", "5", "2"):
        PddlTaskGenerator(plan_length=(5, 2))
    task = (await made(PddlTaskGenerator().propose(ferry(), 1, 0)))[0]
    with user_error("unknown-name", "hardest"):
        await made(PddlTaskGenerator().evolve(ferry(), task, "hardest", 1, 0))


def test_level_grows_with_plan_and_search_and_stays_below_one() -> None:
    levels = [difficulty_of(length, expansions).level for length, expansions in [(1, 0), (2, 10), (2, 900), (8, 900)]]
    assert levels == sorted(levels)
    assert levels[0] > 0
    assert difficulty_of(500, 10**6).level < 1
    assert difficulty_of(4, None).expansions is None
