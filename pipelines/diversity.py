"""Choosing a few diverse trajectories: sketches of features, greedy coverage, and clusters.

A trajectory is a set of features, such as the bigrams of its tools, each hashed to 32 bits. A bottom-k sketch (Cohen
and Kaplan, PODC 2007) keeps the features with the lowest hashes, so sets that share features keep the same ones, and
memory is bounded. Two features share a number with a probability of 2^-32.

``choose_by_coverage`` maximises sum(weight(f) * best quality among those chosen that have f) over the features f, where
the weight is the number of trajectories that have f. This is monotone and submodular, so the greedy choice has at least
1 - 1/e (63 %) of the highest value (Nemhauser, Wolsey and Fisher 1978), and 1/(p + 1) of it where each trajectory
counts for p quotas (Fisher, Nemhauser and Wolsey 1978). Gains only shrink, so a stale one is an upper bound (lazy
greedy, Minoux 1978). Gains are integers: no order of additions and no processor changes the choice.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_intdigest

from agentmill.pipelines.duplicates import BATCH_TOKENS, shingles
from agentmill.pipelines.quota_counts import QuotaCount, full, take

Hashes = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROWS_AT_ONCE = 4_096
"""Trajectories whose features are looked up together."""

WEIGHT_ROOM = 2**50
"""The most that all features weigh: with a quality of up to 2**12, gains are numbers of 64 bits."""

DIMENSIONS = 2_048
"""Features are hashed to so many dimensions before they are clustered, or centres would have millions."""


class Features(msgspec.Struct, frozen=True):
    """The features of trajectories by number from 1, (trajectories, width); 0 where there are fewer.

    ``counts`` are the numbers of trajectories that have each feature, ``weights`` the same scaled so that all kinds of
    features weigh alike; both are 0 for number 0.
    """

    numbers: npt.NDArray[np.int32]
    counts: Numbers
    weights: Numbers

    @property
    def total(self) -> int:
        """The weight of all features."""
        return int(self.weights.sum())

    def blocks(self) -> Iterator[slice]:
        """Rows that are worked on together."""
        return (slice(start, start + ROWS_AT_ONCE) for start in range(0, len(self.numbers), ROWS_AT_ONCE))


class SketchTable:
    """Sketches of trajectories, numbered as they are added. ``sizes`` are the tokens of a shingle by kind of feature.

    Memory is four bytes for each of the ``width`` features of a trajectory, twice that in ``features``; the rest of
    ``capacity`` is only reserved. The width is divided among the kinds.
    """

    def __init__(self, capacity: int, sizes: Sequence[int], width: int) -> None:
        self._width = max(1, width // len(sizes))
        self._sizes = list(sizes)
        self._hashes = np.zeros((capacity, self._width * len(sizes)), dtype=np.uint32)
        self._batches: list[list[tuple[int, Sequence[bytes]]]] = [[] for _ in sizes]
        self._tokens = 0
        self._filled = 0

    def add(self, tokens: Sequence[Sequence[bytes]]) -> bool:
        """Add a trajectory by its tokens of each kind. Whether it has any."""
        for batch, each in zip(self._batches, tokens, strict=True):
            if each:
                batch.append((self._filled, each))
        self._filled += 1
        self._tokens += sum(map(len, tokens))
        if self._tokens >= BATCH_TOKENS:
            self._flush()
        return any(tokens)

    def features(self) -> Features:
        """The features of all that were added; the table cannot be used any more."""
        self._flush()
        # Numbers take the place of hashes in the same memory.
        hashes = self._hashes[: self._filled]
        numbers = hashes.view(np.int32)
        counts, known = [np.zeros(1, dtype=np.int64)], 1
        for kind in range(len(self._sizes)):
            columns = slice(kind * self._width, (kind + 1) * self._width)
            values = _distinct(hashes[:, columns])
            values = values[values > 0]
            own = np.zeros(len(values), dtype=np.int64)
            for start in range(0, len(hashes), ROWS_AT_ONCE):
                block = hashes[start : start + ROWS_AT_ONCE, columns]
                there, places = block > 0, np.searchsorted(values, block)
                own += np.bincount(places[there], minlength=len(values))
                numbers[start : start + ROWS_AT_ONCE, columns] = np.where(there, places + known, 0)
            counts.append(own)
            known += len(values)
        return Features(numbers, np.concatenate(counts), np.concatenate(_alike(counts)))

    def _flush(self) -> None:
        for kind, (size, batch) in enumerate(zip(self._sizes, self._batches, strict=True)):
            hashes, offsets = shingles([tokens for _, tokens in batch], size)
            folded = (hashes >> np.uint64(32)).astype(np.uint32)
            for (row, _), start, end in zip(batch, offsets[:-1], offsets[1:], strict=True):
                lowest = _distinct(folded[start:end])[: self._width]
                self._hashes[row, kind * self._width : kind * self._width + len(lowest)] = lowest
            batch.clear()
        self._tokens = 0


class Coverage:
    """How well each feature is covered by the trajectories that were added: the best quality among them.

    ``quality`` (trajectories,) are integers of at least 0; ``None``: all are 1, and a feature is covered or not.
    """

    def __init__(self, features: Features, quality: Numbers | None = None) -> None:
        self._features = features
        self.quality = np.ones(len(features.numbers), dtype=np.int64) if quality is None else quality
        self.reset()

    def reset(self) -> None:
        """Cover nothing."""
        self._levels = np.zeros(len(self._features.weights), dtype=np.int64)

    def gain(self, row: int) -> int:
        """What a trajectory would add."""
        own = self._features.numbers[row]
        return int(self._features.weights[own] @ np.maximum(self.quality[row] - self._levels[own], 0))

    def gains(self, rows: Numbers | None = None) -> Numbers:
        """What each of ``rows``, by default all trajectories, would add, (rows,)."""
        rows = np.arange(len(self.quality)) if rows is None else rows
        found = np.empty(len(rows), dtype=np.int64)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            block = rows[start : start + ROWS_AT_ONCE]
            own = self._features.numbers[block]
            missing = np.maximum(self.quality[block, None] - self._levels[own], 0)
            found[start : start + ROWS_AT_ONCE] = (self._features.weights[own] * missing).sum(axis=1)
        return found

    def sets(self, rows: Numbers) -> Numbers:
        """A number from 0 for the set of features of each of ``rows``, (rows,)."""
        known: dict[int, int] = {}
        hashes = (xxh3_128_intdigest(self._features.numbers[row].tobytes()) for row in rows.tolist())
        return np.array([known.setdefault(each, len(known)) for each in hashes], dtype=np.int64)

    def add(self, row: int) -> None:
        """Add a trajectory."""
        own = self._features.numbers[row]
        self._levels[own] = np.maximum(self._levels[own], self.quality[row])


def new_shares(features: Features, rows: Iterable[int]) -> tuple[dict[int, float], Coverage]:
    """The share of all features, by weight, that each of ``rows`` adds to those before it, and what they cover."""
    coverage, total, found = Coverage(features), max(1, features.total), dict[int, float]()
    for row in rows:
        found[row] = coverage.gain(row) / total
        coverage.add(row)
    return found, coverage


class WaitingPlaces:
    """The places of an order that are not taken, in a queue for each set of features, the best quality first.

    Only the first of a queue can add the most: of two trajectories with equal features the better one adds more, or
    neither adds anything. ``sets`` and ``quality`` are those of the ``places``, (places,) each.
    """

    def __init__(self, sets: Numbers, quality: Numbers, places: Numbers) -> None:
        by_set = np.lexsort((places, -quality, sets))
        self._places = places[by_set]
        self._heads = np.flatnonzero(np.diff(sets[by_set], prepend=-1))
        self._ends = np.append(self._heads[1:], len(places))
        self._queues = np.zeros(int(places.max(initial=-1)) + 1, dtype=np.int64)
        self._queues[places] = sets

    def firsts(self) -> Numbers:
        """The first place of each queue that is not empty."""
        firsts: Numbers = self._places[self._heads[self._heads < self._ends]]
        return firsts

    def take(self, place: int) -> int | None:
        """Take the first ``place`` of a queue away. Returns the next one, or ``None``."""
        queue = self._queues[place]
        self._heads[queue] += 1
        return int(self._places[self._heads[queue]]) if self._heads[queue] < self._ends[queue] else None

    def rest(self) -> list[int]:
        """All places that are left, in order."""
        ends = zip(self._heads.tolist(), self._ends.tolist(), strict=True)
        return sorted(place for head, end in ends for place in self._places[head:end].tolist())


def choose_by_coverage(
    coverage: Coverage, order: Numbers, quotas: Sequence[QuotaCount], accepted: Sequence[int], size: int
) -> Iterator[int]:
    """At most ``size`` trajectories: those ``accepted``, then always the one that adds most, within the quotas.

    Of equal ones the first in ``order`` (trajectories,) is chosen. Where nothing more is to be covered, all is covered
    once more. Fewer than ``size`` come where no more fit into the quotas.
    """
    total, left = len(order), size - len(accepted)
    places = np.flatnonzero(~np.isin(order, accepted))
    waiting = WaitingPlaces(coverage.sets(order[places]), coverage.quality[order[places]], places)
    for row in accepted:
        coverage.add(row)
        take(quotas, row)
        yield row
    covers = bool(accepted)
    while left and len(firsts := waiting.firsts()):
        heap = _heap(firsts.tolist(), coverage.gains(order[firsts]).tolist(), total)
        while left and heap:
            place = heap[0] % total
            row = int(order[place])
            if full(quotas, row) is not None:
                _advance(heap, waiting, total)
                continue
            gain = coverage.gain(row)
            if place - gain * total > heap[0]:
                heapq.heapreplace(heap, place - gain * total)
                continue
            if not gain:
                break
            _advance(heap, waiting, total)
            covers = True
            left -= 1
            coverage.add(row)
            take(quotas, row)
            yield row
        if not covers:
            # Nothing adds anything any more.
            yield from _within(quotas, order[waiting.rest()], left)
            return
        coverage.reset()
        covers = False


def _advance(heap: list[int], waiting: WaitingPlaces, total: int) -> None:
    """Replace the top by the next place of its queue, which adds no more."""
    place = heap[0] % total
    following = waiting.take(place)
    if following is None:
        heapq.heappop(heap)
    else:
        heapq.heapreplace(heap, heap[0] - place + following)


def _within(quotas: Sequence[QuotaCount], rows: Numbers, left: int) -> Iterator[int]:
    """At most ``left`` of ``rows``, in order, within the quotas."""
    for row in rows.tolist():
        if not left:
            return
        if full(quotas, row) is None:
            left -= 1
            take(quotas, row)
            yield row


def choose_by_clusters(
    labels: Numbers, merits: Numbers, order: Numbers, quotas: Sequence[QuotaCount], accepted: Sequence[int], size: int
) -> Iterator[int]:
    """At most ``size`` trajectories: those ``accepted``, then the best of each cluster, the second best, and so on.

    ``labels`` and ``merits`` are (trajectories,); the largest cluster goes first. Accepted trajectories count for their
    clusters. The rest is as in ``choose_by_coverage``.
    """
    sizes = np.bincount(labels)
    first = np.ones(len(order), dtype=np.int64)
    first[list(accepted)] = 0
    within = order[np.lexsort((-merits[order], first[order], labels[order]))]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(len(order)) - starts[labels[within]]
    others = within[np.lexsort((labels[within], -sizes[labels[within]], places))]
    for row in accepted:
        take(quotas, row)
        yield row
    left = size - len(accepted)
    yield from _within(quotas, others[first[others] == 1], left)


def cluster(features: Features, order: Numbers, clusters: int, seed: int) -> tuple[Numbers, Floats]:
    """The cluster of each trajectory by k-means (Sculley 2010), and its cosine with the centre, (trajectories,) each.

    Features are binary, weighed by their inverse document frequency, and hashed to ``DIMENSIONS``.
    """
    from scipy.sparse import csr_matrix
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.preprocessing import normalize
    from threadpoolctl import threadpool_limits

    ordered = features.numbers[order]
    there = ordered > 0
    starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    rarity = np.log((1 + len(order)) / (1 + features.counts)) + 1
    values = rarity[ordered[there]].astype(np.float32)
    rows = normalize(csr_matrix((values, ordered[there] % DIMENSIONS, starts), shape=(len(order), DIMENSIONS)))
    # One thread: workers share the cores, and sums do not depend on their number.
    with threadpool_limits(1):
        model = MiniBatchKMeans(n_clusters=clusters, random_state=seed % 2**32, n_init=10).fit(rows)
    centres = normalize(model.cluster_centers_)
    labels, cosines = np.empty(len(order), dtype=np.int64), np.empty(len(order))
    for block in features.blocks():
        own = model.labels_[block]
        labels[order[block]] = own
        cosines[order[block]] = rows[block].multiply(centres[own]).sum(axis=1).A1
    return labels, cosines


def _heap(places: Sequence[int], gains: Sequence[int], total: int) -> list[int]:
    """A heap with one number for each place of ``total`` and its gain, the best one lowest.

    Tuples would take four times the memory. A number may be longer than 64 bits, so no array can hold them.
    """
    heap = [place - gain * total for place, gain in zip(places, gains, strict=True)]
    heapq.heapify(heap)
    return heap


def _alike(counts: Sequence[Numbers]) -> list[Numbers]:
    """The ``counts`` of each kind of feature times a whole number, so that all kinds have the same sum.

    They are the same but for a share of ``sum / (WEIGHT_ROOM / kinds)`` where the least common one is too large.
    """
    sums = [max(1, int(each.sum())) for each in counts]
    common = min(math.lcm(*sums), WEIGHT_ROOM // len(sums))
    return [each * (common // own) for each, own in zip(counts, sums, strict=True)]


def _distinct(hashes: Hashes) -> Hashes:
    """The different ones, sorted, (n,). ``np.unique`` may take a hash table, and then four times the memory."""
    ordered = np.sort(hashes, axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
