"""A diagnosis: how a model does at tasks by skill, difficulty or environment, and how its attempts fail.

Counts of groups are metrics of a table of ``diagnose``, called by JSON lists: ``["skills", "stack", "attempts"]``.
Success has a Wilson score interval (``agentmill.pipelines.evaluation``) in which attempts count as independent, so with
several attempts at each task it is too narrow. Behaviour rates by stage are those of PIPA (arXiv:2505.01592).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from agentmill.pipelines.evaluation import BY, Episode, Interval, wilson
from agentmill.pipelines.recipes.summary import Row, interval, percent, reasons_text
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, Trajectory
from agentmill.schemas.records.verdict import Quality, Verdict

ATTEMPTS, SUCCESS, ACTIONS, INVALID, LOOPED, TRUNCATED = (
    "attempts",
    "success",
    "actions",
    "invalid",
    "looped",
    "truncated",
)
FAILURE = "failure: "
"""Before how an attempt failed."""

WIDTH = 130
"""Characters of groups of tasks in one note; a group that is longer has a note of its own."""

MOST_REASONS = 3
"""Kinds of failure that a line shows."""

COLUMNS = ["table", "by", "value", "attempts", "success", "95 % interval", "invalid", "loops", "truncated", "failures"]


class Group(msgspec.Struct, frozen=True):
    """The attempts at the tasks of one value of a field."""

    by: str
    value: str
    counts: Mapping[str, float]

    @property
    def attempts(self) -> int:
        """How many there are."""
        return int(self.counts.get(ATTEMPTS, 0))

    @property
    def success(self) -> float:
        """The share of them that succeeded."""
        return self.counts.get(SUCCESS, 0) / self.attempts

    @property
    def ci95(self) -> Interval:
        """The Wilson interval of this share."""
        return wilson(self.counts.get(SUCCESS, 0), self.attempts)

    @property
    def failures(self) -> dict[str, int]:
        """How many attempts failed in each way, the most frequent first; an attempt may have failed in several."""
        found = {name.removeprefix(FAILURE): int(n) for name, n in self.counts.items() if name.startswith(FAILURE)}
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    @property
    def invalid_rate(self) -> float | None:
        """The share of actions that the environment refused; ``None`` without actions."""
        actions = self.counts.get(ACTIONS, 0)
        return self.counts.get(INVALID, 0) / actions if actions else None

    def share(self, count: str) -> float:
        """The share of attempts that ``count`` counts."""
        return self.counts.get(count, 0) / self.attempts

    def __str__(self) -> str:
        most = dict(list(self.failures.items())[:MOST_REASONS])
        why = f"; {reasons_text(most)}" if most else ""
        return f"{self.by} {self.value}: {percent(self.success)} {interval(self.ci95)} of {self.attempts:,}{why}"


def metric(by: str, value: str, count: str) -> str:
    """What a metric is called that counts in a group."""
    return msgspec.json.encode([by, value, count]).decode()


def groups_of(metrics: Mapping[str, float]) -> list[Group]:
    """The groups in the metrics of a table, by field, the least successful first."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, n in metrics.items():
        if name.startswith('["'):
            by, value, count = msgspec.json.decode(name, type=tuple[str, str, str])
            found.setdefault((by, value), {})[count] = n
    groups = [Group(by, value, counts) for (by, value), counts in found.items() if counts.get(ATTEMPTS)]
    return sorted(groups, key=lambda each: (each.by, each.success, each.value))


def diagnosis_rows(name: str, manifest: Manifest) -> list[Row]:
    """A row of ``COLUMNS`` for each group of a table; none for tables of other operators."""
    return [
        [
            name,
            each.by,
            each.value,
            each.attempts,
            percent(each.success),
            interval(each.ci95),
            percent(each.invalid_rate),
            percent(each.share(LOOPED)),
            percent(each.share(TRUNCATED)),
            reasons_text(each.failures),
        ]
        for each in groups_of(manifest.metrics)
    ]


class Failed(NamedTuple):
    """What a verdict on a whole trajectory that did not pass says of why: broken parts, the item at fault, a reason."""

    name: str
    parts: tuple[str, ...] = ()
    item: int | None = None
    reason: str = ""

    @classmethod
    def of(cls, verdict: Verdict) -> Failed:
        """The failure that a verdict with its evidence tells of."""
        violated, item = verdict.evidence.get("violated"), verdict.evidence.get("item")
        parts = tuple(map(str, violated)) if isinstance(violated, list) else ()
        # A reason in words would be a kind of its own for every attempt.
        reason = verdict.reason if (verdict.reason or "").isidentifier() else None
        return cls(verdict.name, parts, item if isinstance(item, int) else None, reason or "")

    def kinds(self, trajectory: Trajectory) -> Iterator[str]:
        """It in words that are equal for equal failures."""
        if self.parts:
            yield from (f"{self.name}/{part}" for part in self.parts)
        elif self.item is not None and 0 <= self.item < len(trajectory.content):
            yield f"{self.name} at {_kind(trajectory, self.item)}"
        else:
            yield f"{self.name} {self.reason}".strip()


def counts_of(episode: Episode, kinds: Iterable[str]) -> Counter[str]:
    """What one attempt counts for; of a failed one also the ``kinds`` of its failure."""
    found = Counter(
        {
            ATTEMPTS: 1,
            SUCCESS: int(episode.success),
            ACTIONS: episode.actions,
            INVALID: episode.invalid,
            LOOPED: int(episode.looped),
            TRUNCATED: int(episode.truncated),
        }
    )
    if not episode.success:
        found.update({f"{FAILURE}{kind}" for kind in kinds})
    return found


def failure_kinds(trajectory: Trajectory, failed: Iterable[Failed], quality: Quality | None) -> Iterator[str]:
    """How an attempt failed: by its end, by the verdicts on the whole that did not pass, and by its counts."""
    if (trajectory.outcome.reason or "").isidentifier():
        yield f"outcome {trajectory.outcome.reason}"
    for each in failed:
        yield from each.kinds(trajectory)
    yield from _of_counts(quality)


def _kind(trajectory: Trajectory, item: int) -> str:
    action = trajectory.content[item]
    if isinstance(action, ApiAction):
        return action.function
    return "code" if isinstance(action, CodeAction) else "message"


def _of_counts(quality: Quality | None) -> Iterator[str]:
    if quality is None:
        return
    if quality.calls_undeclared:
        yield "undeclared_calls"
    if quality.calls_misfit:
        yield "misfit_calls"
    if quality.refused:
        yield "refused"


def group_lines(results: JsonObject) -> Iterator[str]:
    """How often each model of an evaluation succeeds in each group of tasks, some groups a line."""
    for split, models in results.items():
        for model, measures in models.items():
            for field, groups in measures.get(BY, {}).items():
                rates = [
                    f"{value}: {percent(each['success'])} {interval(each['ci95'])} of {each['n']:,}"
                    for value, each in groups.items()
                ]
                for line in _filled(rates):
                    yield f"{split}, {model}, tasks by {field}: {line}"


def _filled(rates: Iterable[str]) -> Iterator[str]:
    """Rates joined into lines that are no longer than ``WIDTH``, or have one rate."""
    line = ""
    for rate in rates:
        longer = f"{line}; {rate}" if line else rate
        if line and len(longer) > WIDTH:
            yield line
        line = rate if len(longer) > WIDTH else longer
    if line:
        yield line
