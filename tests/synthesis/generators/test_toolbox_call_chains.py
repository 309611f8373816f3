"""Chains of calls in toolboxes from the grammar: of the wanted kind and length, connected, and admitted."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_procedural.generator import propose
from agentmill.synthesis.generators.toolbox_tasks.back_translation import values_of
from agentmill.synthesis.generators.toolbox_tasks.call_chains import CallChains, is_chain
from agentmill.synthesis.generators.toolbox_tasks.generator import ToolboxTaskGenerator
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox
from tests.synthesis.environments.toolbox.boxes import LIBRARY_SPEC
from tests.synthesis.generators.environments import inspiration

SPECS = [propose(inspiration(), seed) for seed in range(3)]


def drawn(spec: EnvironmentSpec, length: tuple[int, int], n: int = 8, changing: float = 0.5) -> list[Task]:
    return [each for each in CallChains(length).proposals(spec, n, changing, 0) if isinstance(each, Task)]


def calls_of(live: LiveToolbox, task: Task) -> list[Call]:
    """The calls of the solution, executed."""
    tools = {tool.name: tool for tool in live.toolbox.tools}
    live.reset()
    gold = [each for each in task.gold or [] if isinstance(each, ApiAction) and each.function in tools]
    calls = [live.call(tools[each.function], each.kwargs) for each in gold]
    assert None not in calls
    return [call for call in calls if call is not None]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_chains_are_connected_new_and_admitted(spec: EnvironmentSpec) -> None:
    tasks = drawn(spec, (2, 4))
    assert len(tasks) == 8 == len({task.structure_digest for task in tasks})
    kinds: Counter[bool] = Counter()
    with closing(LiveToolbox(spec)) as live:
        for task in tasks:
            calls = calls_of(live, task)
            assert 2 <= len(calls) <= 4
            assert is_chain(live.toolbox, calls, set())
            kinds[any(call.tool.writes for call in calls)] += 1
    assert kinds == {True: 4, False: 4}
    assert [failed for task in tasks if (failed := rejection(admit_task(task, spec)[0]))] == []


def test_unconnected_calls_and_keys_that_the_user_gives_make_no_chain() -> None:
    with closing(LiveToolbox(LIBRARY_SPEC)) as live:
        tools = {tool.name: tool for tool in live.toolbox.tools}
        member = live.call(tools["find_member"], {"name": "Mia Costa"})
        book = live.call(tools["find_book"], {"title": "Maps of Salt"})
        assert member is not None
        assert book is not None
        lending = live.call(
            tools["lend_book"],
            {"member_id": member.rows[0]["member_id"], "book_id": book.rows[0]["book_id"]},
        )
        assert lending is not None
        assert is_chain(live.toolbox, [member, book, lending], set())
        assert is_chain(live.toolbox, [book], set())
        assert not is_chain(live.toolbox, [member, book], set())
        assert not is_chain(live.toolbox, [member, lending], {str(lending.arguments["member_id"])})
        given, found = values_of(live.toolbox, [member, lending])
        # Member and book have the same number; that of the book comes from no call.
        assert (given, found) == (["Mia Costa", "3"], ["3"])


def test_the_same_seed_draws_the_same_and_another_share_other_kinds() -> None:
    assert drawn(LIBRARY_SPEC, (1, 3)) == drawn(LIBRARY_SPEC, (1, 3))
    (last,) = list(CallChains((9, 9)).proposals(LIBRARY_SPEC, 1, 0, 0))
    assert isinstance(last, GenerationError)
    assert "has no different chains of 9 to 9 calls that only read, and 1 are wanted" in last.detail


async def test_a_chain_can_be_evolved_as_a_task_of_propose() -> None:
    task = drawn(LIBRARY_SPEC, (1, 2), n=2)[0]
    variants = [each async for each in ToolboxTaskGenerator().evolve(LIBRARY_SPEC, task, "harder", 2, 0)]
    made = [each for each in variants if isinstance(each, Task)]
    assert made
    assert all(len(each.gold or []) > len(task.gold or []) for each in made)
