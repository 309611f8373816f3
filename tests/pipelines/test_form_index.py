"""The index of canonical forms: what a scene adds to words and actions."""

from __future__ import annotations

from collections.abc import Sequence

from agentmill.pipelines.canonical_form import Act
from agentmill.pipelines.form_index import FormIndex
from agentmill.pipelines.leak_features import Sample

HALL = "You are in the {0}; the {0} leads to the {1}; the {1} leads to the {2}; the {3} is in the {1}."


def walk(*names: str, scene: str = HALL, stated: bool = False) -> Sample:
    """A task of two actions, of which there are many."""
    acts = (Act("go", names[:2], call=True), Act("take", (names[3],), call=True))
    asked = (f"Goal: you have the {names[3]}.",)
    return Sample(asked=asked, acts=acts, scene=(scene.format(*names),) if scene else (), stated=stated)


def shares(entry: Sample, sample: Sample, others: Sequence[Sample] = (), common: int = 3) -> float:
    index = FormIndex([entry], common, keep_numbers=True)
    for number, each in enumerate([entry, sample, *others]):
        index.observe(each, number)
    index.close()
    return index.shares(sample).get(0, 0.0)


ENTRY = walk("hall", "attic", "loft", "key")
LEAK = walk("barn", "field", "mill", "axe")
OTHER_STATE = HALL + " The {0} is dark; the {1} is locked; the {2} is wet."


def test_the_scene_makes_a_short_solution_comparable() -> None:
    assert shares(ENTRY, LEAK) == 1.0
    assert shares(walk("hall", "attic", "loft", "key", scene=""), walk("barn", "field", "mill", "axe", scene="")) == 0.0


def test_another_scene_is_another_task() -> None:
    assert shares(ENTRY, walk("barn", "field", "mill", "axe", scene=OTHER_STATE)) < 0.8
    assert shares(walk("hall", "attic", "loft", "key", scene=OTHER_STATE), LEAK) < 0.8


def test_common_actions_in_a_rare_scene_are_evidence() -> None:
    others = [walk(f"a{n}", f"b{n}", f"c{n}", f"d{n}", scene=OTHER_STATE) for n in range(5)]
    assert shares(ENTRY, LEAK, others) == 1.0
    same = [walk(f"a{n}", f"b{n}", f"c{n}", f"d{n}") for n in range(5)]
    assert shares(ENTRY, LEAK, same) == 0.0


def test_scenes_of_two_kinds_are_not_compared() -> None:
    stated = walk("barn", "field", "mill", "axe", scene=OTHER_STATE, stated=True)
    assert shares(ENTRY, stated) == 1.0
    assert shares(walk("hall", "attic", "loft", "key", stated=True), stated) < 0.8


def test_names_are_the_same_in_instruction_and_actions() -> None:
    text = "Please carry the heavy {0} and after that the light {1} to the other end of the yard."
    acts = [(Act("take", (first,), True), Act("take", (last,), True)) for first, last in ("ab", "dc")]
    entry = Sample(asked=(text.format("a", "b"),), acts=acts[0])
    same, crossed = (Sample(asked=(text.format(*names),), acts=acts[1]) for names in ("dc", "cd"))
    others = [Sample(asked=(f"{n}",), acts=acts[0]) for n in range(5)]
    assert shares(entry, same, others) == 1.0
    assert shares(entry, crossed, others) == 0.0


def test_what_is_comparable() -> None:
    index = FormIndex([ENTRY, walk("hall", "attic", "loft", "key", scene=""), Sample()], 10, keep_numbers=True)
    index.close()
    assert index.comparable() == {0}
    nothing = FormIndex([], 10, keep_numbers=True)
    nothing.close()
    assert nothing.comparable() == set()
    assert nothing.shares(LEAK) == {}
