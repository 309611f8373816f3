"""Which runs of a library are found: of which tasks, in which order, and without ranking what nobody wants."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.rollouts import retrieval as recall
from agentmill.synthesis.rollouts.retrieval import Card, Retrieval, WordIndex, card_of, drawn, words_of
from agentmill.synthesis.strategies.memory import Memory
from tests.builders import agent_message, instruction, seen, trajectory
from tests.ruin_environment import ruin_task
from tests.synthesis.rollouts.similarity import similarity
from tests.synthesis.strategies.exploring import library

TASK = ruin_task()


def run_of(name: str, words: str, task_id: str | None = None) -> Trajectory:
    content = [instruction(words), seen("Here."), agent_message("go"), seen("There.", 1)]
    return trajectory(name, task_id=task_id, generation=None, content=content)


@pytest.mark.parametrize("by", ["similar", "random"])
def test_runs_that_name_no_task_are_told_apart_by_their_instructions(by: str) -> None:
    shelf = library(*(run_of(f"run{n}", f"Count to {n // 2}.") for n in range(6)))
    found = shelf.find(TASK, Memory(shots=5, by=by), one_per_task=True)  # type: ignore[arg-type]
    assert sorted(int(name.removeprefix("run")) // 2 for name in found) == [0, 1, 2]
    assert len(shelf.find(TASK, Memory(shots=5, by=by))) == 5  # type: ignore[arg-type]


def test_instructions_without_blanks_have_words_too() -> None:
    assert words_of("Find the_key 2!") == {"find", "the_key", "2"}
    one, other, third = map(words_of, ("把红色的球放到厨房", "把红色的盒子放到厨房", "明天会下雨吗"))
    assert similarity(one, other) > 0.5 > similarity(one, third)
    assert words_of("カギを探す") == {"カ", "ギ", "を", "探", "す"}


def test_the_task_itself_is_held_out_by_its_id_or_its_instruction() -> None:
    own = [run_of("id", "Anything.", TASK.task_id), run_of("words", f" {TASK.instruction}\n")]
    assert library(*own).find(TASK, Retrieval()) == []
    assert not library(*own).holds(TASK, Retrieval())
    assert sorted(library(*own).find(TASK, Retrieval(held_out=False))) == ["id", "words"]
    assert library(*own).holds(TASK, Retrieval(held_out=False))
    other = library(*own, run_of("twin", TASK.instruction, "another"))
    assert other.find(TASK, Retrieval()) == ["twin"], "a task of its own in spite of the same words"
    assert other.holds(TASK, Retrieval())


@pytest.mark.parametrize("by", ["similar", "random"])
def test_only_runs_in_the_environment_of_the_task_where_that_is_asked_for(by: str) -> None:
    near = trajectory("near", task_id="a", environment_id=TASK.environment_id, content=[instruction("Anything.")])
    far = trajectory("far", task_id="b", environment_id="another", content=[instruction(TASK.instruction)])
    shelf, strict = library(near, far), Retrieval(by=by, same_environment=True)  # type: ignore[arg-type]
    assert sorted(shelf.find(TASK, Retrieval(by=by))) == ["far", "near"]  # type: ignore[arg-type]
    assert shelf.find(TASK, strict) == ["near"]
    assert shelf.holds(TASK, strict)
    assert not library(far).holds(TASK, strict)


def test_nothing_is_ranked_to_know_that_there_is_something(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[int] = []
    nearest = WordIndex.nearest

    def counted(index: WordIndex, words: frozenset[str]) -> Iterator[Card]:
        found = list(nearest(index, words))
        ranked.append(len(found))
        return iter(found)

    monkeypatch.setattr(WordIndex, "nearest", counted)
    shelf = library(*(run_of(f"run{n}", f"Count to {n}.", f"task{n}") for n in range(20)))
    assert shelf.holds(TASK, Retrieval())
    assert ranked == []
    for _ in range(3):
        shelf.find(TASK, Retrieval())
    assert ranked == [20], "and once to find it"
    shelf.find(TASK, Retrieval(same_environment=True))
    assert ranked == [20, 0], "and none of environments that are not shown"


@pytest.mark.parametrize("first", [3, 1_000])
@pytest.mark.parametrize("count", [0, 2, 200])
def test_the_most_similar_cards_come_first_and_equal_ones_in_their_order(
    count: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "SORTED_FIRST", first)
    chance = random.Random(0)
    words = [f"w{n}" for n in range(12)]
    cards = [
        Card(trajectory_id=str(n), task=(None, ""), words=frozenset(chance.sample(words, chance.randrange(6))))
        for n in range(count)
    ]
    index = WordIndex(cards)
    for _ in range(20):
        asked = frozenset([*chance.sample(words, chance.randrange(6)), *(["new"] if chance.random() < 0.5 else [])])
        expected = sorted(cards, key=lambda card: (-similarity(asked, card.words), int(card.trajectory_id)))
        assert list(index.nearest(asked)) == expected


def test_random_cards_are_a_shuffle_that_needs_one_number_each() -> None:
    class Counting(random.Random):
        asked = 0

        def randrange(self, *bounds: int) -> int:  # type: ignore[override]
            self.asked += 1
            return super().randrange(*bounds)

    cards: list[Card] = [card_of(run_of(f"run{n}", "Go.")) for n in range(4)]
    chance = Counting(5)
    firsts = Counter(tuple(card.trajectory_id for card in drawn(cards, chance)) for _ in range(2400))
    assert chance.asked == 2400 * 4
    assert len(firsts) == 24
    assert all(sorted(order) == ["run0", "run1", "run2", "run3"] for order in firsts)
    assert all(55 <= count <= 150 for count in firsts.values()), "100 each, give or take 5 standard deviations"
