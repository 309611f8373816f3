"""Levels by inspiration, and missions whose solutions have the length that is wanted."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Task
from agentmill.synthesis.environments import make
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.babyai_procedural.generator import BabyaiGenerator, levels
from agentmill.synthesis.generators.babyai_tasks.generator import BabyaiTaskGenerator
from agentmill.synthesis.generators.generator import TOO_FEW, GenerationError


async def environment(text: str, seed: int = 0) -> EnvironmentSpec:
    return await BabyaiGenerator().propose(Inspiration(inspiration_id=text, text=text), seed)


async def proposed(spec: EnvironmentSpec, n: int, least: int, most: int) -> list[Task | GenerationError]:
    return [each async for each in BabyaiTaskGenerator((least, most)).propose(spec, n, 7)]


async def test_an_inspiration_names_levels_or_any_is_drawn() -> None:
    named = [await environment("A robot plays GoToObj or PickupDist, say.", seed) for seed in range(8)]
    assert {each.name.partition("-")[0] for each in named} == {"GoToObj", "PickupDist"}
    drawn = [await environment("A quiet library.", seed) for seed in range(40)]
    assert len({each.lineage.notes["level"] for each in drawn if each.lineage}) > 8
    assert drawn[3] == await environment("A quiet library.", 3)
    assert all(each.structure_digest for each in drawn)


@pytest.mark.parametrize("name", levels())
async def test_every_level_can_be_made_and_solved(name: str) -> None:
    spec = await environment(name, 1)
    make(spec).close()
    (task,) = await proposed(spec, 1, 1, 40)
    assert isinstance(task, Task), task
    assert rejection(admit_task(task, spec)[0]) is None


async def test_tasks_have_the_length_that_is_wanted_and_differ() -> None:
    spec = await environment("PutNextLocal")
    tasks = [each for each in await proposed(spec, 6, 3, 4) if isinstance(each, Task)]
    assert len(tasks) == 6
    assert {len(each.gold or []) for each in tasks} == {3, 4}
    assert len({each.structure_digest for each in tasks}) == 6
    for each in tasks:
        assert each.instruction.startswith("Goal: put the ")
        assert each.max_turns == 2 * len(each.gold or []) + 6
        assert each.difficulty is not None
        assert each.difficulty.plan_length == len(each.gold or [])
        assert {"pick_up", "put_next_to"} <= set(each.skills)
    assert [each.task_id for each in tasks] == [
        each.task_id for each in await proposed(spec, 6, 3, 4) if isinstance(each, Task)
    ]


async def test_a_level_without_such_missions_says_so() -> None:
    found = await proposed(await environment("KeyInBox"), 2, 1, 2)
    assert [each.reason for each in found if isinstance(each, GenerationError)] == [TOO_FEW, TOO_FEW]


async def test_variants_are_on_their_side_and_keep_the_split() -> None:
    spec = await environment("PutNextLocal")
    parent = next(each for each in await proposed(spec, 1, 3, 3) if isinstance(each, Task))
    lengths = {}
    for direction in ("easier", "other", "harder"):
        made = [each async for each in BabyaiTaskGenerator().evolve(spec, parent, direction, 2, 0)]
        lengths[direction] = [len(each.gold or []) for each in made if isinstance(each, Task)]
        assert all(each.lineage and each.lineage.parents == [parent.task_id] for each in made if isinstance(each, Task))
    short = msgspec.structs.replace(parent, gold=(parent.gold or [])[:1])
    failed = [each async for each in BabyaiTaskGenerator().evolve(spec, short, "easier", 1, 0)]
    assert [each.reason for each in failed if isinstance(each, GenerationError)] == ["no_easier_task"]
    assert all(lengths.values())
    assert all(max(less) < min(more) for less, more in pairwise(lengths.values()))


async def test_a_spec_that_cannot_be_made_is_one_failure() -> None:
    broken = EnvironmentSpec(environment_id="b", family="babyai", name="b", source="BabyAI-None-v0")
    (failure,) = await proposed(broken, 3, 1, 4)
    assert isinstance(failure, GenerationError)
    assert failure.reason == "broken_environment"
