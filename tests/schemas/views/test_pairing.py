"""Plans of pairs: known answers for each rule, and what holds of every plan."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.views.pairing import REASONS, Candidate, Pair, Plan, Rules, compare, left_out, plan


def candidate(name: str, score: float | None, actions: str = "", **fields: Any) -> Candidate:
    """A candidate that does one thing a letter; by default something that no other does."""
    deeds = tuple((actions or name)[: end + 1] for end in range(len(actions or name)))
    values: dict[str, Any] = {
        "trajectory_id": name,
        "group": "task",
        "opening": "prompt",
        "score": score,
        "actions": deeds,
        "with_loss": tuple(range(1, len(deeds) + 1)),
        "text": deeds[-1],
    }
    return Candidate(**{**values, **fields})


def names(planned: Plan) -> list[tuple[str, str]]:
    return [(pair.chosen.trajectory_id, pair.rejected.trajectory_id) for pair in planned.pairs]


def reasons(planned: Plan) -> dict[str, str]:
    return {trajectory_id: reason for (trajectory_id, _), reason in planned.unused.items()}


def test_the_better_one_is_chosen() -> None:
    planned = plan([candidate("a", 0.0), candidate("b", 1.0), candidate("c", 0.5)], Rules())
    assert names(planned) == [("b", "a"), ("b", "c"), ("c", "a")]
    assert [pair.gap for pair in planned.pairs] == [1.0, 0.5, 0.5]
    assert planned.unused == {}


@pytest.mark.parametrize(
    ("other", "rules", "reason"),
    [
        (candidate("b", 0.0, group="else"), {}, "no_partner"),
        (candidate("b", 0.0, opening="else"), {}, "other_opening"),
        (candidate("b", None), {}, "unscored"),
        (candidate("b", 0.9), {}, "tie"),
        (candidate("b", 0.9 + 1e-12), {}, "tie"),
        (candidate("b", 0.0, "a"), {}, "equivalent"),
        (candidate("b", 0.0, "axy"), {}, "equivalent"),
        (candidate("b", 1.0, "axy"), {}, "equivalent"),
        (candidate("b", 0.0, "xyz", with_loss=(3,)), {"turns_over": 1}, "no_loss"),
        (candidate("b", 0.0, "axy"), {"turns_over": 0}, "equivalent"),
        (candidate("b", 0.0), {"min_chosen": 0.95}, "below_min_chosen"),
        (candidate("b", 0.8), {"min_gap": 0.1}, "gap_too_small"),
    ],
)
def test_why_two_make_no_pair(other: Candidate, rules: dict[str, Any], reason: str) -> None:
    planned = plan([candidate("a", 0.9), other], Rules(**rules))
    assert names(planned) == []
    assert reasons(planned) == {"a": reason, "b": reason}


def test_gaps_are_those_of_decimal_numbers() -> None:
    assert compare(candidate("a", 0.3), candidate("b", 0.2), Rules(min_gap=0.1)) == "gap_too_small"
    pair = compare(candidate("a", 0.9), candidate("b", 0.7), Rules(min_gap=0.1, min_chosen=0.9))
    assert isinstance(pair, Pair)
    assert pair.gap == 0.2


def test_the_chosen_one_is_good_enough_but_for_rounding() -> None:
    assert names(plan([candidate("a", 0.1 + 0.7), candidate("b", 0.0)], Rules(min_chosen=0.8))) == [("a", "b")]


def test_the_reason_that_came_furthest_is_told() -> None:
    others = [candidate("b", 1.0), candidate("c", None), candidate("d", 0.9), candidate("e", 0.45, "b")]
    planned = plan([candidate("a", 1.0), *others], Rules(min_gap=0.5))
    assert names(planned) == [("a", "e")]
    assert reasons(planned) == {"b": "gap_too_small", "c": "unscored", "d": "gap_too_small"}


def test_the_preferred_wins_whatever_the_scores() -> None:
    expert = candidate("e", 0.1, preferred=True)
    planned = plan([expert, candidate("a", 0.9), candidate("b", None), candidate("c", 0.5)], Rules())
    assert names(planned) == [("a", "c"), ("e", "a"), ("e", "b"), ("e", "c")]
    assert [pair.gap for pair in planned.pairs] == [0.4, None, None, None]
    assert compare(expert, candidate("f", 0.0, "e"), Rules()) == "equivalent"


def test_a_gap_that_is_asked_for_holds_for_the_preferred_too() -> None:
    expert = candidate("e", 0.6, preferred=True)
    others = [candidate("a", 0.9), candidate("b", None), candidate("c", 0.1), candidate("d", 0.5), candidate("f", 0.6)]
    rules = Rules(min_gap=0.2, preferred_gap=0.2)
    found = [compare(expert, other, rules) for other in others]
    assert [each.gap if isinstance(each, Pair) else each for each in found] == [
        "gap_too_small",
        "unscored",
        0.5,
        "gap_too_small",
        "tie",
    ]
    assert [compare(other, expert, rules) for other in others] == found


@pytest.mark.parametrize(("over", "last"), [(None, 5), (5, 5), (2, 4), (1, 3), (0, 2)])
def test_the_rejected_side_is_cut(over: int | None, last: int) -> None:
    pair = compare(candidate("a", 1.0, "ab"), candidate("r", 0.0, "stuvw"), Rules(turns_over=over))
    assert isinstance(pair, Pair)
    assert pair.last_turn == last


def test_a_cut_ends_with_a_turn_that_carries_loss() -> None:
    pair = compare(candidate("a", 1.0, "a"), candidate("r", 0.0, "stuv", with_loss=(2, 4)), Rules(turns_over=2))
    assert isinstance(pair, Pair)
    assert pair.last_turn == 2


def test_the_cap_spreads_over_both_sides() -> None:
    good = [candidate("a", 1.0), candidate("b", 0.9), candidate("c", 0.8)]
    bad = [candidate("x", 0.0), candidate("y", 0.1), candidate("z", 0.2)]
    assert names(plan([*good, *bad], Rules(max_pairs=3, min_gap=0.5))) == [("a", "x"), ("b", "y"), ("c", "z")]
    one = plan([*good, *bad], Rules(max_pairs=1))
    assert names(one) == [("a", "x")]
    assert reasons(one) == dict.fromkeys("bcyz", "capped")
    alone = plan([good[0], *bad], Rules(max_pairs=2, min_gap=0.5))
    assert names(alone) == [("a", "x"), ("a", "y")]


def test_each_group_has_its_own_cap() -> None:
    found = [candidate(f"{group}{score}", score, group=group) for group in "gh" for score in (0.0, 0.5, 1.0)]
    assert names(plan(found, Rules(max_pairs=1))) == [("g1.0", "g0.0"), ("h1.0", "h0.0")]


def test_the_same_two_actions_make_one_pair_the_one_of_the_widest_gap() -> None:
    planned = plan([candidate("a", 0.4, "u"), candidate("b", 0.0, "v"), candidate("c", 1.0, "v")], Rules())
    assert names(planned) == [("c", "a")]
    assert reasons(planned) == {"b": "equivalent"}


def test_a_trajectory_is_left_out_if_none_of_its_steps_is_used() -> None:
    steps = [
        candidate("a", 1.0, "x", item=2, group="g"),
        candidate("a", 1.0, "x", item=4, group="h"),
        candidate("b", 0.0, "y", item=2, group="g"),
        candidate("c", 1.0, "z", item=2, group="i"),
        candidate("c", 0.0, "w", item=4, group="h", opening="else"),
    ]
    planned = plan(steps, Rules())
    assert [pair.places for pair in planned.pairs] == [(("a", 2), ("b", 2))]
    assert set(planned.unused) == {("a", 4), ("c", 2), ("c", 4)}
    lost = left_out(planned)
    assert list(lost) == ["c"]
    assert lost["c"].reason == "other_opening"
    assert str(lost["c"]).endswith("; of 2 steps: no_partner 1, other_opening 1")


candidates = st.lists(
    st.builds(
        candidate,
        st.integers(0, 20).map(str),
        st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 0.9, 1.0]),
        st.text("ab", min_size=1, max_size=4),
        group=st.sampled_from("gh"),
        opening=st.sampled_from("op"),
        preferred=st.booleans(),
    ),
    unique_by=lambda each: each.place,
    max_size=12,
)
rules = st.builds(
    Rules,
    min_gap=st.sampled_from([0.0, 0.1, 0.5]),
    preferred_gap=st.none() | st.sampled_from([0.0, 0.1]),
    min_chosen=st.none() | st.just(0.9),
    max_pairs=st.none() | st.integers(1, 4),
    turns_over=st.none() | st.integers(0, 2),
)


@given(found=candidates, rule=rules, data=st.data())
def test_what_holds_of_every_plan(found: list[Candidate], rule: Rules, data: st.DataObject) -> None:
    planned = plan(found, rule)
    assert plan(data.draw(st.permutations(found)), rule) == planned
    used = {place for pair in planned.pairs for place in pair.places}
    assert used | set(planned.unused) == {each.place for each in found}
    assert not used & set(planned.unused)
    assert set(planned.unused.values()) <= set(REASONS)
    assert set(left_out(planned)) == {name for name, _ in planned.unused} - {name for name, _ in used}
    assert len({pair.places for pair in planned.pairs}) == len(planned.pairs)
    for pair in planned.pairs:
        check(pair, rule)
    counts = Counter(pair.chosen.group for pair in planned.pairs)
    assert rule.max_pairs is None or all(n <= rule.max_pairs for n in counts.values())


def all_pairs(members: list[Candidate], rule: Rules) -> list[Pair]:
    """The pairs of one group that show different things, by gap."""
    members = sorted(members, key=lambda each: each.place)
    found = [compare(one, other, rule) for one, other in itertools.combinations(members, 2)]
    made = [each for each in found if isinstance(each, Pair)]
    made.sort(key=lambda pair: (float("-inf") if pair.gap is None else -pair.gap, pair.places))
    distinct: dict[frozenset[str], Pair] = {}
    for pair in made:
        distinct.setdefault(pair.texts, pair)
    return list(distinct.values())


large_groups = st.lists(
    st.builds(candidate, st.integers(0, 99).map(str), st.sampled_from([0.0, 0.1, 0.3, 0.9, 1.0]), st.text("abcdefgh")),
    unique_by=lambda each: each.place,
    min_size=12,
    max_size=60,
)


@given(found=large_groups, most=st.integers(1, 6))
def test_the_cap_chooses_among_all_pairs(found: list[Candidate], most: int) -> None:
    planned = plan(found, Rules(max_pairs=most))
    rest, taken = all_pairs(found, Rules()), []
    in_pairs = {place for pair in rest for place in pair.places}
    uses: Counter[Any] = Counter()
    while rest and len(taken) < most:
        taken.append(min(rest, key=lambda pair: sum(uses[place] for place in pair.places)))
        rest.remove(taken[-1])
        uses.update(taken[-1].places)
    assert planned.pairs == sorted(taken, key=lambda pair: pair.places)
    assert {place for place, reason in planned.unused.items() if reason == "capped"} == in_pairs - uses.keys()


def test_a_cap_bounds_the_memory_that_a_large_group_takes() -> None:
    found = [candidate(f"{number:03d}", number % 2) for number in range(300)]
    tracemalloc.start()
    try:
        assert len(plan(found, Rules(max_pairs=4)).pairs) == 4
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def check(pair: Pair, rule: Rules) -> None:
    chosen, rejected = pair.chosen, pair.rejected
    assert (chosen.group, chosen.opening) == (rejected.group, rejected.opening)
    kept = rejected.actions[: pair.last_turn]
    assert kept
    assert rule.turns_over is None or len(kept) <= len(chosen.actions) + rule.turns_over
    assert all(one != other for one, other in list(zip(chosen.actions, kept, strict=False))[-1:])
    if chosen.preferred == rejected.preferred:
        assert chosen.score is not None
        assert rejected.score is not None
        assert pair.gap is not None
        assert chosen.score - rejected.score > rule.min_gap
    else:
        assert chosen.preferred
        if rule.preferred_gap is not None:
            assert chosen.score is not None
            assert rejected.score is not None
            assert chosen.score - rejected.score > rule.min_gap
    assert rule.min_chosen is None or (chosen.score is not None and chosen.score >= rule.min_chosen)
