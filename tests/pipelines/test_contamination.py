"""The tests of contamination on entries and samples alone; the longest common subsequence against a table."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from agentmill.pipelines.canonical_form import Act
from agentmill.pipelines.contamination import BenchmarkIndex, Test, common_subsequence
from agentmill.pipelines.leak_features import Entry, Sample

ALL: dict[Test, float] = {"task": 1.0, "instruction": 0.5, "answer": 0.5, "actions": 0.9, "renamed": 0.8}


def acts(text: str) -> tuple[Act, ...]:
    """An action for each word, the first letter of which is its tool."""
    return tuple(Act(word[0], (word[1:],), call=True) for word in text.split())


def length(first: Sequence[Act], second: Sequence[Act]) -> int:
    """Of a longest common subsequence, by the table of the textbook."""
    row = [0] * (len(second) + 1)
    for one in first:
        last, row = row, [0]
        for place, other in enumerate(second):
            row.append(last[place] + 1 if one == other else max(last[place + 1], row[-1]))
    return row[-1]


def test_common_subsequence() -> None:
    chance = random.Random(1)
    for _ in range(200):
        first, second = (acts(" ".join(chance.choices(["a1", "b1", "c1", "a2"], k=chance.randrange(15)))) for _ in "12")
        places = common_subsequence(first, second)
        assert len(places) == length(first, second)
        assert places == sorted(set(places))
        rest = iter(second)
        assert all(first[place] in rest for place in places)


def test_a_common_subsequence_of_calls_and_commands() -> None:
    calls = (Act("open", ("anna", "door"), call=True), Act("go", ("hall",), call=True))
    commands = (Act("let", ("door", "open", "anna"), call=False), Act("walk", ("hall",), call=False))
    assert common_subsequence(calls, commands) == [0, 1]
    assert common_subsequence(calls, [Act("shut", ("anna", "door"), call=True)]) == []


def index(*entries: Entry, samples: Sequence[Sample] = (), common: int = 10) -> BenchmarkIndex:
    made = BenchmarkIndex(entries, ALL, common)
    for each in samples:
        made.observe(each)
    made.close()
    return made


def entry(number: int = 1, **fields: object) -> Entry:
    return Entry(benchmark="b", entry_id=str(number), **fields)  # type: ignore[arg-type]


def test_the_best_entry_explains_a_match() -> None:
    solution = acts("ax by cz dw")
    made = index(entry(1, acts=solution[:3]), entry(2, acts=solution), entry(3, task_id="t"))
    sample = Sample(task_id="t", acts=solution)
    assert [(match.test, match.entry, match.score) for match in made.match(sample)] == [
        ("task", 2, 1.0),
        ("actions", 0, 1.0),
    ]
    assert made.match(Sample(acts=solution[1:])) == []
    assert made.evidence(made.match(sample)[1], sample) == {
        "test": "actions",
        "benchmark": "b",
        "entry": "1",
        "share": 1.0,
        "actions": "a(x); b(y); c(z)",
    }


def test_two_common_actions_in_a_row_may_be_rare() -> None:
    solution = acts("ax by cz")
    apart = [Sample(asked=(f"{n}",), acts=solution[n % 3 : n % 3 + 1]) for n in range(30)]
    assert index(entry(acts=solution), samples=apart, common=5).match(Sample(acts=solution))
    together = [Sample(asked=(f"{n}",), acts=solution) for n in range(30)]
    assert not index(entry(acts=solution), samples=together, common=5).match(Sample(acts=solution))


def test_what_a_user_says_later_makes_no_other_instruction() -> None:
    solution = acts("ax by cz")
    attempts = [Sample(asked=("Do it.", f"{n}"), acts=solution) for n in range(30)]
    assert index(entry(acts=solution), samples=attempts, common=5).match(attempts[0])


def test_an_instruction_without_actions_is_compared_by_form() -> None:
    asked = (
        "{} has {} apples and buys twice as many pears as the friend who lives next door; how many fruits are there?"
    )
    made = index(entry(instruction=asked.format("Well, Ann", 5)))
    renamed = Sample(asked=(asked.format("Well, Bob", 7),))
    assert [match.test for match in made.match(renamed)] == ["renamed"]
    short = index(entry(instruction="Well, Ann has 5 apples."))
    assert not short.match(Sample(asked=("Well, Bob has 7 apples.",)))
    assert short.comparable() == {"task": 0, "instruction": 1, "answer": 0, "actions": 0, "renamed": 0}


@pytest.mark.parametrize("sample", [Sample(), Sample(asked=("",), prompt=("",), shown=("",)), Sample(task_id="x")])
def test_what_is_empty_matches_nothing(sample: Sample) -> None:
    assert index(entry(), entry(2, instruction="?", answers=("",))).match(sample) == []
    assert index().match(sample) == []


def test_half_a_surrogate_pair_is_a_character() -> None:
    odd = Entry(
        benchmark="b", entry_id="1", instruction="Take it \ud800 now.", acts=(Act("go", ("\ud800", "a"), True),)
    )
    assert [match.test for match in index(odd).match(odd.sample())] == ["instruction"]
