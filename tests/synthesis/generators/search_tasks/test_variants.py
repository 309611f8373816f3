"""Questions with more to find: a fact in the place of a name, a range in the place of a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import Difficulty, Lineage, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.search.corpus import Document
from agentmill.synthesis.environments.search.examples import ARTICLES, solution
from agentmill.synthesis.environments.search.index import open_index
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.search_tasks.generator import CorpusTaskMaker, Wanted
from agentmill.synthesis.generators.search_tasks.variants import SearchTaskGenerator, vague_range
from tests.errors import user_error
from tests.synthesis.environments.search.corpora import spec_of, write_jsonl

ADA = Document("ada", "Ada Vries", "Ada Vries left 1,200 crowns to a school in 1931. Ada Vries wrote poems of Tamsel.")
BEN = Document("ben", "Ben Holt", "Ben Holt left 4,700 crowns to a school in 1935. Ben Holt was a mason.")
ASKED = "What belongs in the place of [MASK] in this text?\n\n“{}”"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()


def corpus(folder: Path, *more: Document) -> Path:
    return write_jsonl(folder / "corpus.jsonl", [ADA, BEN, *more])


def task_of(text: str, answer: str, query: str) -> Task:
    return Task(
        "parent",
        "corpus",
        ASKED.format(text),
        goal={"answer": answer},
        gold=solution([(query, "ada")], answer),
        difficulty=Difficulty(level=0.1667, plan_length=3),
        lineage=Lineage(operator="corpus_tasks", notes={"hidden": [], "sources": ["ada"]}),
        split="held_out_tasks",
    )


async def evolved(path: Path, parent: Task, direction: str, n: int = 1, seed: int = 0) -> list[Any]:
    return [each async for each in SearchTaskGenerator().evolve(spec_of(path), parent, direction, n, seed)]


async def test_a_number_becomes_a_range_that_fits_one_document_only(tmp_path: Path) -> None:
    parent = task_of("[MASK] left 1,200 crowns to a school in 1931.", "Ada Vries", "left 1,200 crowns to a school 1931")
    path = corpus(tmp_path)
    tasks = await evolved(path, parent, "fuzz", 2)
    texts = {task.instruction for task in tasks if isinstance(task, Task)}
    assert texts == {
        ASKED.format("[MASK] left [a number from 1,000 to 1,999] crowns to a school in 1931."),
        ASKED.format("[MASK] left 1,200 crowns to a school in [a year from 1930 to 1939]."),
    }
    for task in tasks:
        searched = next(each for each in task.gold if isinstance(each, ApiAction))
        exact = "1,200" if "a number" in task.instruction else "1931"
        assert exact not in searched.kwargs["query"]
        assert (task.split, task.lineage.parents, task.lineage.notes["direction"]) == (
            "held_out_tasks",
            ["parent"],
            "fuzz",
        )
        assert rejection(admit_task(task, spec_of(path))[0]) is None


async def test_variants_that_two_seeds_come_to_are_equal(tmp_path: Path) -> None:
    parent = task_of("[MASK] left 1,200 crowns to a school in 1931.", "Ada Vries", "left 1,200 crowns to a school 1931")
    one, two = [await evolved(corpus(tmp_path), parent, "fuzz", 2, seed) for seed in (0, 1)]
    assert sorted(one, key=lambda task: task.task_id) == sorted(two, key=lambda task: task.task_id)


async def test_a_range_that_fits_another_document_is_not_taken(tmp_path: Path) -> None:
    """Of a text with the year alone, both documents are possible in the decade."""
    parent = task_of("[MASK] a school in 1931.", "Ada Vries left 1,200 crowns to", "a school in 1931")
    (failure,) = await evolved(corpus(tmp_path), parent, "fuzz")
    assert isinstance(failure, GenerationError)
    assert failure.reason == "no_fuzz_task"
    third = Document("cem", "Cem Oz", "Cem Oz left 1,900 crowns to a school in 1931.")
    parent = task_of("[MASK] left 1,200 crowns to a school in 1931.", "Ada Vries", "left 1,200 crowns to a school 1931")
    tasks = await evolved(corpus(tmp_path, third), parent, "fuzz", 2)
    assert ["a year" in str(getattr(each, "instruction", "")) for each in tasks] == [True, False]


async def test_a_range_that_fits_another_line_of_the_document_is_not_taken(tmp_path: Path) -> None:
    mayors = Document("ada", "Corburg", "In 1821 the mayor was Erik Meier. In 1823 the mayor was Gita Meier.")
    path = write_jsonl(tmp_path / "corpus.jsonl", [mayors, BEN])
    parent = task_of("In 1823 the mayor was [MASK].", "Gita Meier", "In 1823 the mayor was")
    (failure,) = await evolved(path, parent, "fuzz")
    assert isinstance(failure, GenerationError)
    path = write_jsonl(
        tmp_path / "corpus.jsonl", [Document("ada", "Corburg", "In 1823 the mayor was Gita Meier."), BEN]
    )
    open_index.cache_clear()
    (task,) = await evolved(path, parent, "fuzz")
    assert "In [a year from 1820 to 1829] the mayor was [MASK]." in task.instruction


async def test_a_fact_takes_the_place_of_a_name(tmp_path: Path) -> None:
    fair = Document("fair", "Dunholm", "Ada Vries opened the fair with 88 guests.")
    decoy = Document("list", "Fairs", "Who opened the fair with guests? The fair was opened with guests, with guests.")
    path = corpus(tmp_path, fair, decoy)
    gold = solution([("Ada Vries opened the fair", "fair")], "88")
    parent = msgspec.structs.replace(task_of("Ada Vries opened the fair with [MASK] guests.", "88", ""), gold=gold)
    (task,) = await evolved(path, parent, "inject")
    hidden = ASKED.format("[A] opened the fair with [MASK] guests.") + "\n\n[A] hides a name. A statement about [A]: "
    facts = ["“[A] wrote poems of Tamsel.”", "“[A] left 1,200 crowns to a school in 1931.”"]
    assert task.instruction in [hidden + fact for fact in facts]
    assert [each.function for each in task.gold] == ["search", "open", "search", "open", "answer"]
    assert task.lineage.notes["hidden"] == ["Ada Vries"]
    assert (task.difficulty.level, task.difficulty.plan_length) == (0.2858, 5)
    assert rejection(admit_task(task, spec_of(path))[0]) is None


async def test_questions_over_the_articles_have_variants() -> None:
    spec = spec_of(ARTICLES)
    generator, found = SearchTaskGenerator(), []
    for parent in CorpusTaskMaker(spec, Wanted(), 1).propose(9):
        assert isinstance(parent, Task)
        for direction in ("inject", "fuzz"):
            found += [each async for each in generator.evolve(spec, parent, direction, 1, 0) if isinstance(each, Task)]
    assert len(found) >= 9
    assert all(rejection(admit_task(task, spec)[0]) is None for task in found)


def test_ranges_hold_the_decade_or_the_first_digit() -> None:
    assert vague_range("1807") == (1800, 1809)
    assert vague_range("469") == (400, 499)
    assert vague_range("12,400") == (10_000, 19_999)
    assert vague_range("1,807") == (1000, 1999)


async def test_other_directions_and_proposals_are_refused(tmp_path: Path) -> None:
    path, parent = corpus(tmp_path), task_of("[MASK] wrote poems of Tamsel.", "Ada Vries", "poems of Tamsel")
    with user_error("unknown-name", "harder", "inject, fuzz"):
        await evolved(path, parent, "harder")
    with user_error("key-not-for-this", "`corpus_tasks`"):
        _ = [each async for each in SearchTaskGenerator().propose(spec_of(path), 1, 0)]
    (failure,) = await evolved(path, msgspec.structs.replace(parent, goal={}), "fuzz")
    assert failure.reason == "broken_parent"
