"""Toolboxes from the grammar and their tasks: many structures, all admitted, solutions of the wanted length."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from schemas.errors import UserError
from schemas.task import EnvironmentSpec, Inspiration, Task
from schemas.trajectory import ApiAction
from synthesis.environments import make
from synthesis.generators.admission import admit_environment, admit_task, rejection
from synthesis.generators.generator import GenerationError
from synthesis.generators.toolbox_procedural.generator import propose
from synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from tests.hash_seeds import printed
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC, LIBRARY_TASK
from tests.synthesis.generators.worlds import inspiration

SEEDS = 60
WORLDS = [propose(inspiration(), seed) for seed in range(6)]


async def made(tasks: AsyncIterator[Task | GenerationError]) -> list[Task]:
    return [task async for task in tasks if isinstance(task, Task)]


@pytest.fixture(scope="module")
def worlds() -> list[EnvironmentSpec]:
    return [propose(inspiration("Nothing in particular."), seed) for seed in range(SEEDS)]


def test_every_seed_gives_another_structure(worlds: list[EnvironmentSpec]) -> None:
    assert len({spec.structure_digest for spec in worlds}) == SEEDS
    themes = Counter(spec.lineage.notes["theme"] for spec in worlds if spec.lineage)
    assert len(themes) >= 10


def test_almost_all_are_admitted_and_the_rest_has_a_tool_that_its_rows_never_allow(
    worlds: list[EnvironmentSpec],
) -> None:
    reasons = Counter(failed.name for spec in worlds if (failed := rejection(admit_environment(spec))) is not None)
    assert set(reasons) <= {"unreachable_tool"}
    assert reasons.total() <= SEEDS // 20


def test_no_task_is_only_a_question_with_few_values_to_choose_from() -> None:
    tasks = [task for spec in WORLDS for task in ToolboxTaskGenerator((2, 4)).proposals(spec, 30, 0)]
    alone = [
        task.goal["answers"][0].get("others", [])
        for task in tasks
        if isinstance(task, Task) and task.skills == ["look up"] and len(task.goal["answers"]) == 1
    ]
    assert alone
    assert all(len(others) >= 3 for others in alone)


def test_an_inspiration_chooses_the_theme_and_a_seed_the_rest() -> None:
    text = Inspiration(inspiration_id="i9", text="Every patient sees a doctor before the nurse brings medicine.")
    told = [propose(text, seed) for seed in range(5)]
    assert {spec.lineage.notes["theme"] for spec in told if spec.lineage} == {"clinic"}
    assert propose(text, 3) == told[3]


@pytest.mark.parametrize("spec", WORLDS, ids=lambda spec: spec.name)
async def test_tasks_are_new_solvable_and_of_the_wanted_length(spec: EnvironmentSpec) -> None:
    tasks = await made(ToolboxTaskGenerator((3, 6)).propose(spec, 8, 0))
    assert len(tasks) == 8 == len({task.structure_digest for task in tasks})
    for task in tasks:
        report, gold, _ = admit_task(task, spec)
        failed = rejection(report)
        assert failed is None or failed.name in ("unneeded_call", "wrong_argument_accepted")
        assert 3 <= len(task.gold or []) <= 6
        assert gold == (task.gold if failed is None else None)
        assert task.difficulty is not None
        assert task.difficulty.plan_length == len(task.gold or [])
        assert task.max_turns > 2 * len(task.gold or [])


async def test_most_tasks_are_admitted() -> None:
    pairs = [(spec, task) for spec in WORLDS for task in await made(ToolboxTaskGenerator().propose(spec, 10, 1))]
    admitted = [task for spec, task in pairs if rejection(admit_task(task, spec)[0]) is None]
    assert len(admitted) >= 0.95 * len(pairs) > 50
    levels = {round(task.difficulty.level, 1) for task in admitted if task.difficulty}
    assert {0.3, 0.4} <= levels
    assert all(0 < level < 1 for level in levels)


async def test_keys_of_a_call_come_from_the_calls_before_it() -> None:
    """Most solutions hold a chain: a key that one call shows and the user did not say is what another one takes."""
    chained = 0
    tasks = [(spec, task) for spec in WORLDS for task in await made(ToolboxTaskGenerator((4, 8)).propose(spec, 5, 0))]
    for spec, task in tasks:
        environment = make(spec)
        environment.reset(task, 0)
        heard: list[str] = []
        for action in task.gold or []:
            assert isinstance(action, ApiAction)
            keys = [value for name, value in action.kwargs.items() if name.endswith("_id")]
            chained += any(f'_id":{key}' in text for key in keys for text in heard)
            heard.append(str(getattr(environment.step(action).observation, "content", "")))
    assert chained >= len(tasks)


@pytest.mark.parametrize("direction", ["easier", "harder"])
async def test_variants_lie_on_the_side_they_were_asked_for(direction: str) -> None:
    found = []
    for spec in WORLDS[:4]:
        parent = (await made(ToolboxTaskGenerator((4, 5)).propose(spec, 1, 3)))[0]
        parent = msgspec.structs.replace(parent, split="held_out_tasks")
        for task in await made(ToolboxTaskGenerator().evolve(spec, parent, direction, 2, 0)):
            before, now = len(parent.gold or []), len(task.gold or [])
            assert now < before if direction == "easier" else before < now <= before + 6
            assert task.split == "held_out_tasks"
            assert task.lineage is not None
            assert task.lineage.parents == [parent.task_id]
            environment = make(spec)
            environment.reset(task, 0)
            assert not any(environment.step(action).error for action in task.gold or [])
            assert environment.check().passed
            found.append(task)
    assert len(found) >= 4


async def test_a_hand_written_toolbox_gets_tasks_too() -> None:
    tasks = await made(ToolboxTaskGenerator((2, 5)).propose(LIBRARY_SPEC, 6, 0))
    assert len(tasks) == 6
    assert all(task.environment_id == LIBRARY_SPEC.environment_id for task in tasks)


async def test_broken_input_is_a_failure_among_the_values_and_mistakes_of_the_user_are_named() -> None:
    broken = msgspec.structs.replace(LIBRARY_SPEC, source="{}")
    failures = [each async for each in ToolboxTaskGenerator().propose(broken, 3, 0)]
    assert [getattr(failure, "reason", None) for failure in failures] == ["broken_environment"]
    foreign = [each async for each in ToolboxTaskGenerator().evolve(LIBRARY_SPEC, LIBRARY_TASK, "harder", 1, 0)]
    assert [getattr(failure, "reason", None) for failure in foreign] == ["broken_parent"]
    with pytest.raises(UserError, match="unknown direction 'hardest'; expected one of easier, harder"):
        await made(ToolboxTaskGenerator().evolve(LIBRARY_SPEC, LIBRARY_TASK, "hardest", 1, 0))
    with pytest.raises(UserError, match=r"plan_length is \[5, 2\]"):
        ToolboxTaskGenerator((5, 2))


def test_worlds_and_tasks_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import asyncio\n"
        "from schemas.ids import digest\n"
        "from synthesis.generators.toolbox_procedural.generator import propose\n"
        "from synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator\n"
        "from synthesis.generators.toolbox_wrap.wrap import Wrapping, wrap_environment, wrap_task\n"
        "from tests.synthesis.generators.worlds import inspiration\n"
        "async def main():\n"
        "    specs = [propose(inspiration(), seed) for seed in range(4)]\n"
        "    tasks = [(s, t) for s in specs async for t in ToolboxTaskGenerator().propose(s, 3, 1)]\n"
        "    w = Wrapping(2, 3, 2, 1, 0.3)\n"
        "    wrapped = [wrap_task(t, wrap_environment(s, w, 0), w, 0) for s, t in tasks]\n"
        "    print(digest(specs, tasks, [str(t) if isinstance(t, Exception) else t for t in wrapped]))\n"
        "asyncio.run(main())\n"
    )
    [told] = printed(script)
    assert len(told.strip()) == 32
