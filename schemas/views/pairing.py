"""Which candidates make pairs and why the others do not, planned from ids, scores and digests without any content.

Nothing depends on the order of the candidates.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentmill.schemas.conditions import reaches
from agentmill.schemas.ids import digest
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.records.trajectory import Action, AnyAction, AnyItem, ApiAction, CodeAction
from agentmill.schemas.views.view import Unused

REASONS: Mapping[str, str] = {
    "no_partner": "no other trajectory of its task, or for steps no other turn from its state, as branch makes",
    "other_opening": "all others of the same task begin with another prompt",
    "unscored": "no score tells it from the others, and neither it nor any of them is preferred",
    "tie": "all others have the same score",
    "no_loss": "nothing that carries loss is left of the rejected side where it is cut",
    "equivalent": "all others do the same, as far as both go, or another pair shows the same two actions",
    "below_min_chosen": "the better one is not good enough (min_chosen)",
    "gap_too_small": "the scores are too close (min_gap), or that of the preferred one is the lower",
    "capped": "others took the places (max_pairs)",
}
"""Why a candidate is in no pair; of several reasons the last in this list is given, as it came furthest."""

_DISTANCE = {reason: distance for distance, reason in enumerate(REASONS)}

Place = tuple[str, int]
"""(trajectory id, item); item -1 is the whole trajectory."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory, or one of its steps, that may become a side of a pair.

    ``group``: only candidates of one group are compared, and each group has its own cap. ``opening``: the prompt, which
    both sides must share. ``actions``: for every turn, a digest of all that is done up to it. ``with_loss``: the
    numbers of the turns that carry loss, from 1; the last turn does. ``text`` is equal where both sides would say the
    same.
    """

    trajectory_id: str
    group: str
    opening: str
    score: float | None
    actions: tuple[str, ...]
    with_loss: tuple[int, ...]
    text: str
    item: int | None = None
    preferred: bool = False

    @property
    def place(self) -> Place:
        """What it is, in a form that can be sorted."""
        return self.trajectory_id, -1 if self.item is None else self.item


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a pair.

    The gap must exceed ``min_gap``, the better side reach ``min_chosen``; a group gives at most ``max_pairs`` pairs.
    A preferred side wins whatever the scores are, unless ``preferred_gap`` says by how much its score must be higher.
    The rejected side keeps at most ``turns_over`` turns more than the chosen one has. ``None`` is no limit.
    """

    min_gap: float = 0.0
    preferred_gap: float | None = None
    min_chosen: float | None = None
    max_pairs: int | None = None
    turns_over: int | None = None

    def last_turn(self, chosen: Candidate, rejected: Candidate) -> int:
        """The turn that the rejected side ends with; 0 if no turn with loss is left."""
        most = len(rejected.actions) if self.turns_over is None else len(chosen.actions) + self.turns_over
        return max((turn for turn in rejected.with_loss if turn <= most), default=0)


class Pair(msgspec.Struct, frozen=True):
    """Two candidates; ``gap`` is ``None`` where the chosen one is preferred whatever the scores are.

    ``last_turn`` is the turn of the rejected side that it ends with.
    """

    chosen: Candidate
    rejected: Candidate
    gap: float | None
    last_turn: int

    @property
    def places(self) -> tuple[Place, Place]:
        """What the pair is, in a form that can be sorted."""
        return self.chosen.place, self.rejected.place

    @property
    def texts(self) -> frozenset[str]:
        """Equal for pairs that show the same, or the opposite."""
        return frozenset((self.chosen.text, self.rejected.text))


class Plan(msgspec.Struct, frozen=True):
    """The pairs, sorted by what they are, and for each candidate that is in none of them the reason."""

    pairs: list[Pair]
    unused: dict[Place, str]


def plan(candidates: Iterable[Candidate], rules: Rules) -> Plan:
    """Pair the candidates of each group."""
    groups: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        groups[candidate.group].append(candidate)
    pairs: list[Pair] = []
    unused: dict[Place, str] = {}
    for members in groups.values():
        # Sorted, since candidates come in the order of shards and workers.
        found = _plan_group(sorted(members, key=lambda candidate: candidate.place), rules)
        pairs += found.pairs
        unused.update(found.unused)
    return Plan(sorted(pairs, key=lambda pair: pair.places), unused)


def compare(one: Candidate, other: Candidate, rules: Rules) -> Pair | str:
    """The pair that two candidates of a group make, or the reason why they make none."""
    # The checks come in the order of REASONS, so that the reason given is the one that came furthest.
    if one.opening != other.opening:
        return "other_opening"
    gap = None
    preferred = one.preferred != other.preferred
    if one.preferred if preferred else (one.score or 0.0) > (other.score or 0.0):
        chosen, rejected = one, other
    else:
        chosen, rejected = other, one
    if not preferred or rules.preferred_gap is not None:
        if chosen.score is None or rejected.score is None:
            return "unscored"
        # Rounded, so that 0.3 exceeds 0.2 by 0.1 and not by a little less.
        gap = round(chosen.score - rejected.score, 9)
    if gap == 0:
        return "tie"
    last_turn = rules.last_turn(chosen, rejected)
    if last_turn == 0:
        return "no_loss"
    # Digests are of all that is done up to a turn, so one comparison covers the whole way.
    common = min(len(chosen.actions), last_turn) - 1
    if chosen.actions[common] == rejected.actions[common]:
        return "equivalent"
    if rules.min_chosen is not None and (chosen.score is None or not reaches(chosen.score, rules.min_chosen)):
        return "below_min_chosen"
    if gap is not None and gap <= rules.min_gap:
        return "gap_too_small"
    return Pair(chosen, rejected, gap, last_turn)


def left_out(plan: Plan) -> dict[str, Unused]:
    """Why a trajectory is in no pair, for all of which that is so."""
    used = {place[0] for pair in plan.pairs for place in pair.places}
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (trajectory_id, _), reason in plan.unused.items():
        if trajectory_id not in used:
            reasons[trajectory_id][reason] += 1
    return {trajectory_id: _unused(counts) for trajectory_id, counts in reasons.items()}


def _unused(counts: Counter[str]) -> Unused:
    furthest = max(counts, key=lambda reason: _DISTANCE[reason])
    if counts.total() == 1:
        return Unused(furthest, REASONS[furthest])
    shares = ", ".join(f"{reason} {n}" for reason, n in sorted(counts.items()))
    return Unused(furthest, f"{REASONS[furthest]}; of {counts.total()} steps: {shares}")


def _plan_group(members: Sequence[Candidate], rules: Rules) -> Plan:
    reasons = dict.fromkeys((candidate.place for candidate in members), "no_partner")

    def note(one: Place, other: Place, reason: str) -> None:
        for place in (one, other):
            reasons[place] = max(reasons[place], reason, key=lambda each: _DISTANCE[each])

    shortlist = _Shortlist(rules.max_pairs)
    for sides in _alike(members):
        widest: Pair | None = None
        for one, other in sides:
            found = compare(one, other, rules)
            if not isinstance(found, Pair):
                note(one.place, other.place, found)
                continue
            note(*found.places, "equivalent")
            # Of pairs that show the same, the one with the widest gap stays.
            widest = found if widest is None else min(widest, found, key=_largest_gap_first)
        if widest is not None:
            note(*widest.places, "capped")
            shortlist.add(widest)
    pairs = shortlist.pairs()
    if rules.max_pairs is not None:
        pairs = _spread(pairs, rules.max_pairs)
    used = {place for pair in pairs for place in pair.places}
    return Plan(pairs, {place: reason for place, reason in reasons.items() if place not in used})


def _alike(members: Sequence[Candidate]) -> Iterator[Iterable[tuple[Candidate, Candidate]]]:
    """All pairs of members, those that show the same together."""
    by_text: defaultdict[str, list[Candidate]] = defaultdict(list)
    for member in members:
        by_text[member.text].append(member)
    for ones, others in itertools.combinations_with_replacement(by_text.values(), 2):
        yield itertools.combinations(ones, 2) if ones is others else itertools.product(ones, others)


class _Shortlist:
    """Of pairs that come in any order, those that ``_spread`` may take; of large groups, not all fit in memory.

    Before it takes the last of ``most``, it has taken ``2 * (most - 1)`` candidates or fewer. So one of the first
    ``2 * most - 1`` pairs of a candidate has a partner that was not taken, and precedes all further ones.
    """

    def __init__(self, most: int | None) -> None:
        self._size = None if most is None else 2 * most - 1
        self._held: defaultdict[Place, list[Pair]] = defaultdict(list)

    def add(self, pair: Pair) -> None:
        """Take a pair into account; no two show the same."""
        for place in pair.places:
            held = self._held[place]
            held.append(pair)
            # Sorted only now and then, which costs less than to keep the order.
            if self._size is not None and len(held) >= 2 * self._size + 8:
                held.sort(key=_largest_gap_first)
                del held[self._size :]

    def pairs(self) -> list[Pair]:
        """The pairs, the largest gap first."""
        held = {pair.places: pair for pairs in self._held.values() for pair in pairs}
        return sorted(held.values(), key=_largest_gap_first)


def _largest_gap_first(pair: Pair) -> tuple[float, tuple[Place, Place]]:
    return float("-inf") if pair.gap is None else -pair.gap, pair.places


def _spread(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """At most ``most`` of ``pairs``: always the next one in order of those whose two sides were taken least often."""
    uses: Counter[Place] = Counter()
    waiting = [(0, number) for number in range(len(pairs))]
    taken: list[Pair] = []
    while waiting and len(taken) < most:
        known, number = heapq.heappop(waiting)
        pair = pairs[number]
        now = sum(uses[place] for place in pair.places)
        # Uses only grow, so an entry that is out of date is put back instead of being searched for when they change.
        if now > known:
            heapq.heappush(waiting, (now, number))
            continue
        taken.append(pair)
        uses.update(pair.places)
    return taken


def done(content: Sequence[AnyItem], items: Sequence[int]) -> str:
    """Digest of what the actions ``items`` of one message do."""
    actions = [content[index] for index in items]
    return digest("done", [_deed(action) for action in actions if isinstance(action, Action)])


def prompt_texts(tools: str | None, messages: Sequence[Message]) -> list[str]:
    """Digest of what precedes each message, the tools included, and at the end of what precedes a next one."""
    plain = map(_plain, messages)
    return list(itertools.accumulate(plain, lambda before, message: digest(before, message), initial=digest(tools)))


def _deed(action: AnyAction) -> list[Any]:
    if isinstance(action, ApiAction):
        return ["call", action.function, action.kwargs if action.raw_arguments is None else action.raw_arguments]
    if isinstance(action, CodeAction):
        # White space around a text changes nothing that is done.
        return ["code", action.language, action.content.strip()]
    return ["text", action.content.strip()]


def _plain(message: Message) -> list[Any]:
    calls = [[call.name, _arguments(call)] for call in message.tool_calls]
    return [message.role, message.name, (message.content or "").strip(), message.reasoning_content, calls]


def _arguments(call: MessageCall) -> Any:
    try:
        return msgspec.json.decode(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
