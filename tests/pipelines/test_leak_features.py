"""What samples are found by."""

from __future__ import annotations

from agentmill.pipelines.canonical_form import Act
from agentmill.pipelines.leak_features import (
    Entry,
    Sample,
    action_features,
    are_specific,
    piece_features,
    place_features,
    values_of,
)

LONG = "You are in the hall, and next to you there is a table with two lamps."


def test_an_entry_as_a_sample() -> None:
    acts = (Act("go", ("hall",), call=True),)
    entry = Entry(benchmark="b", entry_id="1", task_id="t", instruction="Go.", answers=("x",), acts=acts, scene=("y",))
    assert entry.sample() == Sample(
        task_id="t", asked=("Go.",), prompt=("Go.",), shown=("x",), acts=acts, scene=("y",), stated=False
    )


def test_features_of_actions() -> None:
    acts = (Act("go", ("hall",), call=True), Act("take", ("key", "hall"), call=True))
    assert len(action_features(acts)) == 5
    assert piece_features(acts) == action_features(acts)[-1:]
    assert piece_features(acts[:1]) == action_features(acts[:1])
    assert values_of([*acts, acts[1]]) == 3


def test_digits_alone_tell_nothing() -> None:
    assert not are_specific([Act("weigh", (str(place),), call=True) for place in range(9)])
    assert are_specific([Act("weigh", (str(place),), call=True) for place in range(8, 11)])
    assert not are_specific([Act("take", ("key", "hall"), call=True)] * 2)


def test_a_place_is_a_scene_of_some_words_and_some_labels() -> None:
    assert place_features(Sample(scene=("You are in.",), asked=("Take 'a' and 'b'.",))) == []
    (scene,) = place_features(Sample(scene=(LONG,)))
    assert place_features(Sample(scene=(LONG.upper(),))) == [scene]
    assert place_features(Sample(scene=(LONG,), stated=True)) != [scene]
    (labels,) = place_features(Sample(asked=("Take 'a', 'B' and c5.",)))
    # Another wording, and what is asked later, change nothing.
    assert place_features(Sample(asked=("c5, Also 'b' and then 'A', Please!", "7"))) == [labels]
    assert place_features(Sample(asked=("Take 'a', 'b' and c6.",))) != [labels]
