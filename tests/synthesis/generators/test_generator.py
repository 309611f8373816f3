"""The yield of procedural task generators: what they propose is admitted, or refused because there is no more of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentmill.schemas.records.task import Task
from agentmill.synthesis.generators.generator import DRY, TOO_FEW, GenerationError, different_tasks
from benchmarks.bench_propose import FAMILIES, outcomes
from tests.builders import task

LEAST_YIELD = 0.8


@pytest.mark.parametrize("family", FAMILIES)
async def test_four_of_five_proposals_are_admitted_or_known_to_be_impossible(family: str) -> None:
    found = await outcomes(family, environments=4, n=4)
    assert found.total() == 16
    tried = found.total() - found[TOO_FEW]
    assert found["admitted"] >= LEAST_YIELD * tried > 0, dict(found)


def drawn(results: list[bool], n: int) -> list[Any]:
    """What ``different_tasks`` makes of proposals that succeed or fail in this order, and then fail."""

    def propose(number: int) -> Task | GenerationError:
        succeeds = number < len(results) and results[number]
        return task(f"t{number}") if succeeds else GenerationError("no_new_task", "")

    return list(different_tasks(propose, n, "a plan", 8))


def test_a_failure_gives_way_to_the_next_proposal() -> None:
    found = drawn([True, False, False, True, True], 3)
    assert [each.task_id for each in found] == ["t0", "t3", "t4"]
    assert [each.task_id for each in drawn([False] * (DRY - 1) + [True], 1)] == [f"t{DRY - 1}"]


@pytest.mark.parametrize(("results", "made"), [([], 0), ([True, True], 2), ([False] * DRY + [True], 0)])
def test_proposals_beyond_the_number_of_tasks_are_refused_with_it(results: list[bool], made: int) -> None:
    found = drawn(results, 5)
    refused = [each for each in found if isinstance(each, GenerationError)]
    assert Counter(each.reason for each in refused) == {TOO_FEW: 5 - made}
    assert all(f"{DRY * 8} draws" in each.detail and "n is 5" in each.detail for each in refused)
    assert (f"lower n to {made}" in refused[0].detail) == (made > 0)
