"""Shingles, signatures, candidate pairs and groups: against values by hand and against all pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmill.pipelines import duplicates
from agentmill.pipelines.duplicates import (
    PERMUTATIONS,
    RECALL,
    Groups,
    Linker,
    ShingleFile,
    SignatureTable,
    banding,
    candidate_probability,
    estimates,
    jaccard,
    margin,
    shingles,
    words_of,
)

SIZE = 2


def sets(sequences: Sequence[Sequence[bytes]], size: int = SIZE) -> list[set[int]]:
    hashes, offsets = shingles(sequences, size)
    return [set(hashes[start:end].tolist()) for start, end in itertools.pairwise(offsets)]


def similarity(first: str, second: str, size: int = SIZE) -> float:
    one, two = (np.array(sorted(each), dtype=np.uint64) for each in sets([words_of([first]), words_of([second])], size))
    return jaccard(one, two)


def linked(sequences: Sequence[Sequence[bytes]], near: float, seed: int = 0, size: int = SIZE) -> set[frozenset[int]]:
    """The groups of more than one sequence, by their places; all of one scope."""
    table = SignatureTable(len(sequences), size, seed)
    for tokens in sequences:
        table.add(tokens)
    ranks = np.empty(len(sequences), dtype=np.int64)
    ranks[sorted(range(len(sequences)), key=lambda place: list(sequences[place]))] = np.arange(len(sequences))
    linker = Linker(table.signatures(), np.zeros(len(sequences), dtype=np.uint64), ranks, near)
    for band in range(linker.bands):
        linker.compare(band)
    pairs = linker.undecided()
    with closing(ShingleFile(size)) as file:
        for place in {*pairs.flatten().tolist()}:
            file.add(place, sequences[place])
        file.flush()
        for _ in linker.decide(pairs, file):
            pass
    found: dict[int, set[int]] = {}
    for place, root in enumerate(linker.groups.roots().tolist()):
        found.setdefault(root, set()).add(place)
    return {frozenset(group) for group in found.values() if len(group) > 1}


def brute(sequences: Sequence[Sequence[bytes]], near: float, size: int = SIZE) -> set[frozenset[int]]:
    groups, known = Groups(len(sequences)), sets(sequences, size)
    for one, two in itertools.combinations(range(len(sequences)), 2):
        if len(known[one] & known[two]) >= near * len(known[one] | known[two]):
            groups.join(one, two)
    found: dict[int, set[int]] = {}
    for place in range(len(sequences)):
        found.setdefault(groups.find(place), set()).add(place)
    return {frozenset(group) for group in found.values() if len(group) > 1}


def planted(pairs: int, words: int, edits: int) -> list[list[bytes]]:
    """Sequences of words, each followed by a copy with its last ``edits`` words changed."""
    chance, found = random.Random(3), []
    for pair in range(pairs):
        first = [f"{pair} {chance.random()}".encode() for _ in range(words)]
        found += [first, [*first[: words - edits], *(f"{pair} new {place}".encode() for place in range(edits))]]
    return found


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["Put the BALL, please!"], ["put", "the", "ball", "please"]),
        (['{"to":"box_1","n":2}'], ["to", "box_1", "n", "2"]),
        (["a-b", "", "c"], ["a", "b", "c"]),
        (["Größe “groß” — naïve"], ["größe", "groß", "naïve"]),
        (["東京 tower2を見る"], ["東", "京", "tower2", "を", "見", "る"]),
        (["…!?", " \n"], []),
        (["लड़का, लड़की"], ["लड\u093cका", "लड\u093cकी"]),
        (["ห้องน้ำ 東京"], ["ห้องน้ำ", "東", "京"]),
        (["e\u0301le\u0300ve"], ["élève"]),
        (["\u0301 a"], ["a"]),
    ],
)
def test_words(texts: list[str], words: list[str]) -> None:
    assert [word.decode() for word in words_of(texts)] == words


@given(st.text(alphabet=[chr(code) for code in range(128)]))
def test_both_ways_to_find_words_agree(text: str) -> None:
    assert words_of([text]) == [word.encode() for word in words_of_any(text)]


def words_of_any(text: str) -> list[str]:
    return duplicates._WORD.findall(text.lower())


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b c d", "a b c e", 2 / 4),  # ab bc cd, ab bc ce
        ("a b c d e", "a b c d f", 3 / 5),
        ("a b a b a", "a b a", 1.0),  # sets: ab, ba
        ("a b c", "c b a", 0.0),
        ("a", "a", 1.0),
        ("a", "b", 0.0),
        ("a", "a b", 0.0),
    ],
)
def test_jaccard_by_hand(first: str, second: str, expected: float) -> None:
    assert similarity(first, second) == pytest.approx(expected)


def test_jaccard_of_single_words() -> None:
    assert similarity("a b c d", "d c b e", size=1) == pytest.approx(3 / 5)


def test_shingles_do_not_reach_into_the_next_sequence() -> None:
    together = sets([[b"a", b"b", b"c"], [b"d"], [b"e", b"f"]])
    assert together == [each for tokens in ([b"a", b"b", b"c"], [b"d"], [b"e", b"f"]) for each in sets([tokens])]
    assert [len(each) for each in together] == [2, 1, 1]


def test_a_sequence_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        SignatureTable(1, SIZE, 0).add([])
    with pytest.raises(ValueError, match="without tokens"):
        shingles([[b"a"], []], SIZE)


@pytest.mark.parametrize("near", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_the_bands_find_nearly_all_pairs_of_the_threshold(near: float) -> None:
    bands, rows = banding(near)
    assert bands * rows <= PERMUTATIONS
    assert candidate_probability(near, bands, rows) >= RECALL
    assert near == 1 or candidate_probability(near, PERMUTATIONS // (rows + 1), rows + 1) < RECALL


def test_the_curve_of_the_default() -> None:
    assert banding(0.8) == (32, 8)
    curve = [candidate_probability(similarity, 32, 8) for similarity in (0.3, 0.5, 0.8)]
    assert curve == pytest.approx([0.0021, 0.1177, 0.9972], abs=1e-4)


def test_estimates_are_as_exact_as_they_should_be() -> None:
    # 99 shingles each, 88 shared: 88 / 110.
    sequences = planted(400, 100, 11)
    table = SignatureTable(800, SIZE, 1)
    for tokens in sequences:
        table.add(tokens)
    found = estimates(table.signatures(), np.arange(0, 800, 2), np.arange(1, 800, 2))
    assert found.mean() == pytest.approx(0.8, abs=3.29 * 0.025 / 20)
    assert abs(found - 0.8).max() < margin(0.8)


def test_planted_pairs_are_found_and_no_others() -> None:
    above, below = planted(300, 100, 11), planted(300, 100, 12)
    assert linked(below, 0.8) == set()  # 87 / 111
    found = linked(above, 0.8)
    assert found <= {frozenset({place, place + 1}) for place in range(0, 600, 2)}
    assert len(found) >= 0.98 * 300


def test_groups_are_connected() -> None:
    groups = Groups(7)
    for pair in ((5, 3), (1, 2), (3, 1), (6, 6)):
        groups.join(*pair)
    assert groups.roots().tolist() == [0, 1, 1, 1, 4, 1, 6]
    assert [groups.find(each) for each in range(7)] == [0, 1, 1, 1, 4, 1, 6]


def test_a_chain_is_one_group() -> None:
    words = [str(number).encode() for number in range(60)]
    chain = [words[start : start + 50] for start in (0, 3, 6, 9)]  # 46 / 52 for neighbours, 40 / 58 for the ends
    assert similarity(*(" ".join(word.decode() for word in chain[place]) for place in (0, 3))) < 0.8
    assert linked(chain, 0.85) == {frozenset(range(4))}


def test_near_1_asks_for_equal_sets() -> None:
    words = [str(number).encode() for number in range(400)]
    assert linked([words, [*words, b"x"]], 1.0) == set()  # 399 / 400, whose signatures may be equal
    assert linked([[b"a", b"b", b"a", b"b"], [b"a", b"b", b"a"]], 1.0) == {frozenset({0, 1})}


def test_scopes_are_apart() -> None:
    table = SignatureTable(3, SIZE, 0)
    for _ in range(3):
        table.add([b"a", b"b", b"c"])
    linker = Linker(table.signatures(), np.array([1, 2, 1], dtype=np.uint64), np.arange(3), 0.8)
    for band in range(linker.bands):
        linker.compare(band)
    assert linker.groups.roots().tolist() == [0, 1, 0]


def test_a_large_group_is_found_without_all_its_pairs() -> None:
    words = [str(number).encode() for number in range(100)]
    sequences = [[*words, str(number).encode() * 2] for number in range(1000)]
    assert linked(sequences, 0.8) == {frozenset(range(1000))}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=8), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.8, 1.0]),
    st.randoms(use_true_random=False),
)
def test_groups_do_not_depend_on_the_order(sequences: list[list[bytes]], near: float, chance: random.Random) -> None:
    distinct = [list(each) for each in dict.fromkeys(map(tuple, sequences))]
    shuffled = chance.sample(range(len(distinct)), len(distinct))
    found = linked([distinct[place] for place in shuffled], near)
    found = {frozenset(shuffled[place] for place in group) for group in found}
    assert found == linked(distinct, near)
    # What is joined is joined by similarity; a pair of just the threshold may be missed.
    whole = brute(distinct, near)
    assert all(any(group <= each for each in whole) for group in found)


def test_the_same_seed_gives_the_same_signatures() -> None:
    first, again, other = (SignatureTable(1, SIZE, seed) for seed in (4, 4, 5))
    for table in (first, again, other):
        table.add([b"a", b"b", b"c"])
    assert np.array_equal(first.signatures(), again.signatures())
    assert not np.array_equal(first.signatures(), other.signatures())


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = planted(20, 30, 3)
    whole = linked(sequences, 0.7)
    monkeypatch.setattr(duplicates, "BATCH_TOKENS", 50)
    monkeypatch.setattr(duplicates, "PAIRS_AT_ONCE", 3)
    assert linked(sequences, 0.7) == whole
    assert len(whole) == 20
