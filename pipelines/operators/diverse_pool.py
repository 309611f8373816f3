"""The trajectories that ``select_diverse`` chooses from: what is held of each, and what is decided."""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from agentmill.pipelines.diversity import (
    Coverage,
    Features,
    Floats,
    Numbers,
    SketchTable,
    choose_by_clusters,
    choose_by_coverage,
    cluster,
    new_shares,
)
from agentmill.pipelines.engine import stop
from agentmill.pipelines.quota_counts import QuotaCount, full
from agentmill.schemas.ids import random_key

QUALITY_SCALE, MERIT_SCALE = 1_000, 1_000_000
"""Quality is counted in so many steps, since gains are integers; and so is what is best of a cluster."""


MOST_COUNTED = 100
"""Values of a field that are counted in the manifest; of a field with more of them none is."""


class Method(msgspec.Struct, frozen=True):
    """How trajectories are chosen: by coverage, or with ``clusters`` by so many clusters.

    A trajectory of the lowest score counts 1 less ``quality_weight``, one of the highest 1.
    """

    clusters: int | None
    quality_weight: float
    seed: int


class Decisions(msgspec.Struct, frozen=True):
    """What was decided of each trajectory of a pool; ``ids`` are sorted, and the others in their order.

    ``shares`` are of all features, by weight: what a chosen one adds to those chosen before it, and another would add
    to all that are chosen. ``random_shares`` are those of a random choice of as many, by id. ``empty`` have no feature.
    ``values`` are those of quotas that chosen ones have, as ``split=train``.
    """

    ids: Sequence[str] = ()
    chosen: frozenset[str] = frozenset()
    reasons: Sequence[str] = ()
    codes: Sequence[int] = ()
    shares: Sequence[float] = ()
    random_shares: dict[str, float] = {}
    empty: frozenset[str] = frozenset()
    values: dict[str, list[str]] = {}

    def __contains__(self, trajectory_id: str) -> bool:
        place = bisect_left(self.ids, trajectory_id)
        return place < len(self.ids) and self.ids[place] == trajectory_id

    def reason(self, trajectory_id: str) -> str | None:
        """Why a trajectory of the pool was not chosen; ``None`` if it was."""
        if trajectory_id in self.chosen:
            return None
        return self.reasons[self.codes[bisect_left(self.ids, trajectory_id)]]

    def share(self, trajectory_id: str) -> float:
        """The share of all features that a trajectory of the pool adds."""
        return self.shares[bisect_left(self.ids, trajectory_id)]


class Pool:
    """The trajectories to choose from, with their ``sketches`` and their values for ``quotas``."""

    def __init__(self, sketches: SketchTable, quotas: Sequence[QuotaCount]) -> None:
        self._sketches = sketches
        self._quotas = quotas
        self.ids: list[str] = []
        self._scores = array("d")
        self._accepted: set[int] = set()
        self._empty: set[str] = set()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def accepted(self) -> int:
        """How many are chosen in any case."""
        return len(self._accepted)

    def add(
        self,
        trajectory_id: str,
        tokens: Sequence[Sequence[bytes]],
        score: float | None,
        values: Iterable[Sequence[str]],
        accepted: bool,
    ) -> None:
        """Add a trajectory by its tokens of each kind of feature and its values of each quota.

        One without a score has the best, as all have where there are no scores.
        """
        if accepted:
            self._accepted.add(len(self.ids))
        self.ids.append(trajectory_id)
        self._scores.append(math.inf if score is None else score)
        if not self._sketches.add(tokens):
            self._empty.add(trajectory_id)
        for quota, own in zip(self._quotas, values, strict=True):
            quota.add(own)

    def choose(self, size: int, method: Method) -> Decisions:
        """The choice of ``size`` trajectories; fewer where no more fit into the quotas."""
        features, quality = self._sketches.features(), self._quality()
        order = np.array(sorted(range(len(self)), key=lambda row: (-quality[row], self.ids[row])), dtype=np.int64)
        by_id = np.array(sorted(range(len(self)), key=self.ids.__getitem__), dtype=np.int64)
        accepted = [row for row in order.tolist() if row in self._accepted]
        for quota in self._quotas:
            quota.start(size, accepted)
        weight = method.quality_weight
        if method.clusters is None:
            counted = np.rint(QUALITY_SCALE * (1 - weight + weight * quality)).astype(np.int64) if weight else None
            found = choose_by_coverage(Coverage(features, counted), order, self._quotas, accepted, size)
        else:
            labels, cosines = cluster(features, by_id, min(method.clusters, len(self)), method.seed)
            # Rounded, so that the last digits of a sum decide nothing.
            merits = np.rint(MERIT_SCALE * (weight * quality + (1 - weight) * cosines)).astype(np.int64)
            found = choose_by_clusters(labels, merits, order, self._quotas, accepted, size)
        chosen = []
        for row in found:
            stop.check()
            chosen.append(row)
        otherwise = "adds_less" if method.clusters is None else "not_best_of_cluster"
        return self._decide(features, by_id, chosen, otherwise, method.seed)

    def _quality(self) -> Floats:
        """The scores from 0, the lowest, to 1."""
        scores = np.array(self._scores)
        known = scores[np.isfinite(scores)]
        low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
        # Halves, since the difference of two finite numbers may be infinite.
        span = high / 2 - low / 2
        return np.where(np.isfinite(scores) & (span > 0), (scores / 2 - low / 2) / (span or 1.0), 1.0)

    def _decide(
        self, features: Features, by_id: Numbers, chosen: Sequence[int], otherwise: str, seed: int
    ) -> Decisions:
        """The choice with reasons, and a random one of as many."""
        shares, coverage = new_shares(features, chosen)
        random = heapq.nsmallest(len(chosen), range(len(self)), key=lambda row: self._random_key(row, seed))
        random_shares, _ = new_shares(features, random)
        found = coverage.gains() / max(1, features.total)
        found[list(shares)] = list(shares.values())
        reasons: dict[str, int] = {}
        codes = array("i")
        for row in by_id.tolist():
            value = full(self._quotas, row)
            reason = f"quota: {value}" if value is not None else otherwise if found[row] else "covered"
            codes.append(reasons.setdefault(reason, len(reasons)))
        return Decisions(
            ids=[self.ids[row] for row in by_id],
            chosen=frozenset(self.ids[row] for row in chosen),
            reasons=list(reasons),
            codes=codes,
            shares=array("d", found[by_id]),
            random_shares={self.ids[row]: share for row, share in random_shares.items()},
            empty=frozenset(self._empty),
            values={self.ids[row]: self._values_of(row) for row in chosen},
        )

    def _values_of(self, row: int) -> list[str]:
        """The values of a trajectory; not of quotas with too many of them to count."""
        few = (quota for quota in self._quotas if quota.distinct <= MOST_COUNTED)
        return [value for quota in few for value in quota.of(row)]

    def _random_key(self, row: int, seed: int) -> tuple[int, str]:
        return random_key(self.ids[row], seed), self.ids[row]
