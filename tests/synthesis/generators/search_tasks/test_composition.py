"""Questions made of several: all answers together, or the answer of one hidden in the next."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from agentmill.schemas.records.task import Lineage, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.environments.search.corpus import Document
from agentmill.synthesis.environments.search.examples import ARTICLES, solution
from agentmill.synthesis.environments.search.index import open_index
from agentmill.synthesis.generators.admission import admit_task, rejection
from agentmill.synthesis.generators.composition import CompositionMaker, Draft, How, Wanted
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.search_tasks.checks import shows_answer, shows_name
from agentmill.synthesis.generators.search_tasks.composition import SearchComposer
from agentmill.synthesis.generators.search_tasks.generator import CorpusTaskMaker
from agentmill.synthesis.generators.search_tasks.generator import Wanted as Questions
from tests.synthesis.environments.search.corpora import spec_of, write_jsonl

DOCUMENTS = [
    Document("ada", "Ada Vries", "Ada Vries was a poet of Tamselford."),
    Document("town", "Tamselford", "Tamselford has a bridge with 88 arches."),
    Document("other", "Corbridge", "Corbridge has a bridge with 14 arches. It has a bridge museum with arches."),
    Document("third", "Dunholm", "Dunholm is the town with a bridge and a tower and arches."),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMILL_CACHE", str(tmp_path / "cache"))
    open_index.cache_clear()


def question(task_id: str, text: str, answer: str | list[str], query: str, passage: str) -> Task:
    several = isinstance(answer, list)
    gold = solution([(query, passage)], "; ".join(answer) if isinstance(answer, list) else answer)
    goal = {"answer": answer, "seen": [passage], **({"every": True} if several else {})}
    return Task(task_id, "corpus", text, goal=goal, gold=gold, split="train")


HOME = question("home", "Where did the poet Ada Vries live?", "Tamselford", "Ada Vries poet", "ada")
ARCHES = question("arches", "How many arches has the bridge of Tamselford?", "88", "Tamselford bridge", "town")
TRADE = question("trade", "What was Ada Vries?", "poet", "Ada Vries", "ada")
BOTH = question("both", "How many arches have the bridges?", ["88", "14"], "bridge arches", "town")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", DOCUMENTS)


def composed(corpus: Path, how: How, *parts: Task) -> Draft:
    composer = SearchComposer(spec_of(corpus), parts)
    return composer.compose(how, parts, random.Random(0))


def refusal(corpus: Path, how: How, *parts: Task) -> str:
    with pytest.raises(GenerationError) as caught:
        composed(corpus, how, *parts)
    return caught.value.reason


def test_depth_hides_the_answer_of_one_question_in_the_next(corpus: Path) -> None:
    draft = composed(corpus, "depth", HOME, ARCHES)
    assert draft.instruction == (
        "Answer question 2 alone. [answer 1] is the answer to question 1, and so on.\n\n"
        "Question 1: Where did the poet Ada Vries live?\n\n"
        "Question 2: How many arches has the bridge of [answer 1]?"
    )
    assert draft.goal == {"answer": "88", "seen": ["ada", "town"]}
    assert [*map(str, (each.kwargs for each in draft.gold if isinstance(each, ApiAction)))] == [
        "{'query': 'Ada Vries poet'}",
        "{'id': 'ada'}",
        "{'query': 'Tamselford bridge'}",
        "{'id': 'town'}",
        "{'text': '88'}",
    ]
    assert draft.notes == {"hidden": ["Tamselford"]}
    task = Task("t", "corpus", draft.instruction, goal=draft.goal, gold=draft.gold)
    assert rejection(admit_task(task, spec_of(corpus))[0]) is None


def test_only_questions_that_name_an_answer_follow_it(corpus: Path) -> None:
    composer = SearchComposer(spec_of(corpus), [HOME, ARCHES, TRADE, BOTH])
    assert composer.next_parts("depth", [HOME]) == [ARCHES]
    assert composer.next_parts("depth", [ARCHES]) == composer.next_parts("depth", [BOTH]) == []
    assert composer.next_parts("depth", [TRADE]) == [], "no name"
    assert composer.next_parts("width", [HOME]) == [HOME, ARCHES, TRADE, BOTH]


def test_width_asks_for_all_answers(corpus: Path) -> None:
    draft = composed(corpus, "width", TRADE, BOTH)
    assert draft.instruction.startswith("Answer all 2 questions, in their order. Separate the answers by ';'.\n\n")
    assert draft.goal == {"answer": ["88", "14", "poet"], "every": True, "seen": ["town", "ada"]}
    assert draft == composed(corpus, "width", BOTH, TRADE)
    task = Task("t", "corpus", draft.instruction, goal=draft.goal, gold=draft.gold)
    assert rejection(admit_task(task, spec_of(corpus))[0]) is None


def test_questions_that_give_each_other_away_are_refused(corpus: Path) -> None:
    assert refusal(corpus, "width", HOME, ARCHES) == "answer_shown"
    assert refusal(corpus, "width", ARCHES, BOTH) == "same_answer"
    hiding = msgspec.structs.replace(TRADE, lineage=Lineage(operator="corpus_tasks", notes={"hidden": ["Tamselford"]}))
    assert refusal(corpus, "width", hiding, ARCHES) == "name_shown"
    told = msgspec.structs.replace(HOME, instruction="Where did Ada Vries live, if not in “Tamselford”?")
    assert refusal(corpus, "depth", told, ARCHES) == "name_shown"


def test_a_question_that_needs_no_other_is_refused(corpus: Path) -> None:
    direct = msgspec.structs.replace(ARCHES, instruction="How many arches, if 88 are Tamselford's, has the bridge?")
    assert (
        refusal(corpus, "depth", HOME, msgspec.structs.replace(direct, goal={"answer": "bridge"})) == "top_hit_answers"
    )


def test_composed_questions_and_lists_of_which_one_is_enough_are_no_parts(corpus: Path) -> None:
    composer = SearchComposer(spec_of(corpus), [])
    assert composer.unfit(HOME) is None
    assert composer.unfit(msgspec.structs.replace(HOME, goal={"answer": ["a", "b"]})) == "several_answers"
    assert composer.unfit(msgspec.structs.replace(HOME, goal={})) == "broken_goal"
    for operator in ("compose", "evolve"):
        lineage = Lineage(operator=operator, notes={"how": "width"})
        assert composer.unfit(msgspec.structs.replace(HOME, lineage=lineage)) == "composed"


def test_questions_over_the_articles_are_extended_in_depth() -> None:
    spec = spec_of(ARTICLES)
    asked = CorpusTaskMaker(spec, Questions(depth=(1, 2)), 1).propose(120)
    parts = {task.task_id: task for task in asked if isinstance(task, Task)}
    maker = CompositionMaker(
        SearchComposer, spec, list(parts.values()), Wanted(how=("depth",), parts=(2, 3), tries=20), 0
    )
    tasks = [task for task in maker.propose(8) if isinstance(task, Task)]
    assert len(tasks) >= 6
    assert maker.counts["top_hit_answers"] > 0
    for task in tasks:
        assert task.lineage is not None
        chain = [parts[each] for each in task.lineage.parents]
        for before, after in pairwise(chain):
            assert shows_answer(after.instruction, [str(before.goal["answer"])])
        assert not shows_name(task.instruction, task.lineage.notes["hidden"])
        assert task.goal["answer"] == chain[-1].goal["answer"]
        opened = [each.kwargs["id"] for each in task.gold or [] if isinstance(each, ApiAction) and "id" in each.kwargs]
        assert set(opened) == {passage for part in chain for passage in part.lineage.notes["sources"] if part.lineage}
