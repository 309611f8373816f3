from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentmill.schemas.records.task import Task
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.search.corpus import Document
from agentmill.synthesis.environments.search.index import open_index
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.generator import TOO_FEW
from agentmill.synthesis.generators.search_tasks.checks import shows_answer, shows_name
from agentmill.synthesis.generators.search_tasks.generator import CHECKED_WALKS, TOP_HIT, CorpusTaskMaker, Wanted
from agentmill.synthesis.generators.search_tasks.questions import Method
from tests.synthesis.environments.search.corpora import invented, spec_of, write_jsonl


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()


def made(path: Path, n: int, **wanted: object) -> list[Task]:
    tasks = list(CorpusTaskMaker(spec_of(path), msgspec.convert(wanted, Wanted), 1).propose(n))
    assert all(isinstance(each, Task) for each in tasks), tasks
    return [each for each in tasks if isinstance(each, Task)]


@pytest.mark.parametrize("method", ["mask", "walk", "width"])
def test_tasks_differ_are_admitted_and_tell_no_answer(method: Method, tmp_path: Path) -> None:
    path = invented(tmp_path)
    spec = spec_of(path)
    tasks = made(path, 20, methods=[method], depth=[1, 3])
    assert len({task.structure_digest for task in tasks}) == len({task.task_id for task in tasks}) == 20
    for task in tasks:
        assert task.lineage is not None
        notes, answer = task.lineage.notes, task.goal["answer"]
        report, _, _ = admit_task(task, spec)
        assert rejection(report) is None
        assert not shows_answer(task.instruction, answer if isinstance(answer, list) else [answer])
        assert not shows_name(task.instruction, notes["hidden"])
        assert len(task.gold or ()) == 2 * len(notes["sources"]) + 1
        assert all(source not in task.instruction for source in notes["sources"] if "-" in source)
    depths = {task.lineage.notes["depth"] for task in tasks if task.lineage is not None}
    assert depths == ({1, 2, 3} if method == "mask" else {2, 3})


def test_methods_take_turns_and_the_same_seed_gives_the_same_tasks(tmp_path: Path) -> None:
    path = invented(tmp_path)
    tasks = made(path, 6)
    assert [task.skills for task in tasks] == 2 * [["mask"], ["walk"], ["width"]]
    assert made(path, 6) == tasks


def test_depth_is_difficulty(tmp_path: Path) -> None:
    path = invented(tmp_path)
    levels = [made(path, 1, methods=["walk"], depth=[depth, depth])[0].difficulty for depth in (2, 3, 4)]
    assert [each.plan_length for each in levels if each is not None] == [5, 7, 9]
    assert sorted({each.level for each in levels if each is not None}) == [each.level for each in levels if each]


def test_passages_that_must_be_seen(tmp_path: Path) -> None:
    (task,) = made(invented(tmp_path), 1, methods=["walk"], depth=[2, 2], see=True)
    assert task.lineage is not None
    assert task.goal["seen"] == task.lineage.notes["sources"]
    environment = make(spec_of(invented(tmp_path)))
    environment.reset(task, 0)
    environment.step((task.gold or [])[-1])
    assert (environment.check().passed, environment.check().score) == (False, 0.5)


def test_a_walk_that_its_own_words_answer_is_left_out(tmp_path: Path) -> None:
    both = "Ada Vries was a poet who was born in Tamselford. It has a bridge with 88 arches over the water."
    path = write_jsonl(
        tmp_path / "corpus.jsonl",
        [
            Document("ada", "Ada Vries", both),
            Document("town", "Tamselford", "It has a bridge with 88 arches over the water."),
        ],
    )
    maker = CorpusTaskMaker(spec_of(path), Wanted(methods=("walk",), depth=(2, 2)), 1)
    assert not any(isinstance(each, Task) for each in maker.propose(2))
    assert maker.counts[CHECKED_WALKS] > 0
    assert maker.counts[TOP_HIT] == maker.counts[CHECKED_WALKS]


def test_a_corpus_without_anything_to_mask(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [Document("a", "otters", "otters swim in the water all day long.")])
    failures = [str(each) for each in CorpusTaskMaker(spec_of(path), Wanted(), 1).propose(2)]
    assert len(failures) == 2
    assert all("nothing_to_mask" in each and "no date, number, name" in each for each in failures)


def test_a_small_corpus_says_how_many_tasks_it_has(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", [Document("ada", "Ada Vries", "Ada Vries died in Tamsel in 1931.")])
    found = list(CorpusTaskMaker(spec_of(path), Wanted(methods=("mask",), depth=(1, 1)), 1).propose(9))
    tasks = [each for each in found if isinstance(each, Task)]
    failures = [each for each in found if not isinstance(each, Task)]
    assert {str(task.goal["answer"]) for task in tasks} == {"1931", "Tamsel"}
    assert {each.reason for each in failures} == {TOO_FEW}
    assert "lower n to 2 or change depth or method" in str(failures[0])


def test_a_changed_corpus_fails_every_task(tmp_path: Path) -> None:
    path = invented(tmp_path)
    spec = spec_of(path)
    path.write_bytes(path.read_bytes() + b"\n")
    open_index.cache_clear()
    failures = list(CorpusTaskMaker(spec, Wanted(), 1).propose(3))
    assert ["has changed" in str(each) for each in failures] == [True] * 3


def test_admission_refuses_a_question_that_has_its_answer(tmp_path: Path) -> None:
    path = invented(tmp_path)
    (task,) = made(path, 1, methods=["mask"], depth=[1, 1])
    shown = msgspec.structs.replace(task, instruction=f"{task.instruction} It is {task.goal['answer']}.")
    failed = rejection(admit_task(shown, spec_of(path))[0])
    assert failed is not None
    assert failed.name == "answer_shown"


def test_words_of_names_are_found_in_any_case() -> None:
    assert shows_answer("It has 12,400 roads.", ["12400"])
    assert not shows_answer("It has 12,400 roads.", ["400"])
    assert shows_name("the VRIES family", ["Ada Vries"])
    assert not shows_name("Ada of the family", ["Ada Vries"])
