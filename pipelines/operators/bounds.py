"""Upper bounds of what a step reads, writes and asks of models, known before anything is started.

Operators declare them (``Operator.bounds``) from the bounds of their input tables. ``None`` is unknown, and whatever
is computed from it is unknown, too. Repeated requests after faults of a server are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from agentmill.pipelines.serving.models import SAMPLED, ModelConfig
from agentmill.pipelines.serving.vllm_command import LONGEST_CONTEXT
from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.rollouts.llm_calls import TRIES

Most = int | None
"""The most that a number can be; ``None`` if that is not known."""

RISK = 1e-9
"""The probability with which a random share of rows may be more than ``of_share``."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table, at most ``n``, and by split, where that is known.

    Of tasks and trajectories ``turns`` is the most turns of an episode, ``plan`` the most actions of an expert.
    """

    n: Most = None
    splits: Mapping[str | None, int] | None = None
    turns: Most = None
    plan: Most = None

    def of_split(self, split: str | None) -> Most:
        """The rows of a split, or all of them."""
        return self.n if split is None or self.splits is None else self.splits.get(split, 0)

    def times(self, factor: Most) -> Rows:
        """So many rows in the place of each."""
        n, known = product(self.n, factor), self.splits is not None and factor is not None
        splits = {name: each * (factor or 0) for name, each in (self.splits or {}).items()}
        return msgspec.structs.replace(self, n=n, splits=splits if known else None)

    def drawn(self, share: float) -> Rows:
        """Those that fall into a random ``share``; see ``of_share``."""
        splits = {name: of_share(n, share) or 0 for name, n in (self.splits or {}).items()}
        n = of_share(self.n, share)
        return msgspec.structs.replace(self, n=n, splits=None if self.splits is None else splits)


class Asked(msgspec.Struct, frozen=True):
    """What is asked of one model: requests, tokens read and tokens written."""

    calls: Most
    prompt_tokens: Most
    completion_tokens: Most


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """At most this: inputs of a step, rows of its table and of its side tables, episodes, and what roles are asked.

    ``factors`` are the numbers whose product is that of the episodes and their turns, for people.
    """

    reads: Most
    rows: Rows
    sides: Mapping[str, Rows] = {}
    episodes: Most = 0
    asked: Mapping[str, Asked] = {}
    factors: Mapping[str, Most] = {}


def product(*factors: Most) -> Most:
    """The product; 0 if a factor is, else unknown if one is."""
    if 0 in factors:
        return 0
    known = [each for each in factors if each is not None]
    return math.prod(known) if len(known) == len(factors) else None


def total(numbers: Iterable[Most]) -> Most:
    """The sum; unknown if one of the numbers is."""
    values = list(numbers)
    known = [each for each in values if each is not None]
    return sum(known) if len(known) == len(values) else None


def most(numbers: Iterable[Most]) -> Most:
    """The largest; unknown if one of the numbers is."""
    values = list(numbers)
    known = [each for each in values if each is not None]
    return max(known, default=0) if len(known) == len(values) else None


def least(*limits: Most) -> Most:
    """The smallest of the limits that are known."""
    return min((each for each in limits if each is not None), default=None)


def mapped(number: Most, function: Callable[[int], int]) -> Most:
    """``function`` of a number that is known."""
    return None if number is None else function(number)


def union(tables: Iterable[Rows]) -> Rows:
    """The rows of several tables."""
    found = list(tables)
    splits: dict[str | None, int] = {}
    for each in found:
        for name, n in (each.splits or {}).items():
            splits[name] = splits.get(name, 0) + n
    known = all(each.splits is not None for each in found)
    return Rows(
        n=total(each.n for each in found),
        splits=splits if known else None,
        turns=most(each.turns for each in found),
        plan=most(each.plan for each in found),
    )


def of_share(n: Most, share: float) -> Most:
    """How many of ``n`` rows fall into a random ``share`` of them, but for a probability below ``RISK``."""
    if n is None or share >= 1:
        return n
    # Hoeffding's bound, or Chernoff's, which is the lower one for small shares.
    mean, needed = n * share, -math.log(RISK)
    hoeffding = mean + math.sqrt(n * needed / 2)
    chernoff = mean + needed / 3 + math.sqrt(needed * needed / 9 + 2 * mean * needed)
    return min(n, math.ceil(min(hoeffding, chernoff)))


def asks(model: ModelConfig, calls: Most, sampling: JsonObject) -> Asked | None:
    """What ``calls`` of a model cost at most; ``sampling`` is that of the step. ``None`` for one that sends none."""
    if model.policy in ("expert", "scripted"):
        return None
    if model.policy not in SAMPLED:
        return Asked(calls, None, None)
    sent = model.sampling.sent(sampling)
    limit = sent.get("max_completion_tokens", sent.get("max_tokens"))
    window = (model.server.max_model_len or LONGEST_CONTEXT) if model.policy == "vllm" else model.context_window
    if model.endpoints:
        window = model.context_window or model.server.max_model_len
    # Our own servers take no prompt that leaves no room for the whole answer.
    prompt = window - (limit or 0) if model.managed and window is not None else window
    return Asked(calls, product(calls, mapped(prompt, lambda each: max(each, 0))), product(calls, least(limit, window)))


def asked_of(
    models: Mapping[str, ModelConfig],
    calls: Mapping[str, Most],
    sampling: Callable[[str], JsonObject],
    silent: Collection[str] = (),
) -> dict[str, Asked]:
    """What is asked of the models by role; those that are asked nothing are left out, and ``silent`` ones only read."""
    found = {role: asks(models[role], n, sampling(role)) for role, n in calls.items() if role in models and n != 0}
    asked = {role: each for role, each in found.items() if each is not None}
    for role in asked.keys() & set(silent):
        asked[role] = msgspec.structs.replace(asked[role], completion_tokens=0)
    return asked


def sum_asked(asked: Iterable[Asked]) -> Asked:
    """What is asked of one model in several places."""
    found = list(asked)
    return Asked(
        total(each.calls for each in found),
        total(each.prompt_tokens for each in found),
        total(each.completion_tokens for each in found),
    )


def for_words(questions: Most) -> Most:
    """The calls of a model that is asked for words and may answer with none."""
    return product(questions, TRIES)
