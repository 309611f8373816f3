"""Ids and seeds: digests of what a thing is, never of when or where it was made.

Canonical JSON has sorted keys, no spaces, and one spelling of equal numbers (``1.0`` is ``1``, as in RFC 8785).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec

from agentmill.schemas.records.record import JsonObject

_CANONICAL = {str, int, NoneType}
"""Types of values that have one spelling in JSON anyway."""


def digest(*parts: Any) -> str:
    """Hex SHA-256 of the canonical JSON of ``parts``, cut to 32 digits (128 bits).

    Raises ``ValueError`` for what JSON cannot say: NaN, infinities, lone surrogates, other types.
    """
    return _sha256(parts).hexdigest()[:32]


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of the bytes of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def derive_seed(*parts: Any) -> int:
    """A seed in [0, 2**31) that depends on ``parts`` alone."""
    # 31 bits fit into every integer that a library may take a seed as, with a sign or without.
    return int.from_bytes(_sha256(parts).digest()[:4], "big") >> 1


def random_key(identifier: str, seed: int) -> int:
    """The place of the thing of that id in a random order, which no order of tables changes."""
    # A keyed digest, so that ids that follow each other are drawn as any others.
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8, key=seed.to_bytes(8, "big")).digest())


def generated_id(
    task_id: str,
    policy: str,
    revision: str | None,
    strategy: str,
    sampling: JsonObject,
    seed: int,
    attempt: int,
    parent_id: str | None = None,
    branch_turn: int | None = None,
) -> str:
    """The id of a trajectory that we make: known before it is run."""
    return digest("generated", task_id, policy, revision, strategy, sampling, seed, attempt, parent_id, branch_turn)


def ingested_id(dataset: str, split: str | None, sha256: str, occurrence: int = 0) -> str:
    """The id of a trajectory read from elsewhere; ``occurrence`` counts equal raw records of one dataset and split."""
    return digest("ingested", dataset, split, sha256, occurrence)


def part_id(trajectory_id: str, part: str) -> str:
    """The id of a further run in the record that ``trajectory_id`` was read from: a branch, an attempt, a sub-agent.

    Likewise that of a run in a search tree that bears ``trajectory_id``.
    """
    return digest("part", trajectory_id, part)


def row_id(trajectory_id: str, view: str, view_parameters: JsonObject, index: int = 0) -> str:
    """The id of the ``index``-th training row that a view makes of a trajectory."""
    return digest("row", trajectory_id, view, view_parameters, index)


def _sha256(parts: tuple[Any, ...]) -> hashlib._Hash:
    try:
        # The general way converts and walks through all values, which most ids do not need.
        if set(map(type, parts)) <= _CANONICAL:
            return hashlib.sha256(msgspec.json.encode(parts))
        builtins = _canonical(msgspec.to_builtins(parts, str_keys=True))
        return hashlib.sha256(msgspec.json.encode(builtins, order="deterministic"))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"cannot be written as JSON: {value}")
        return int(value) if value.is_integer() else value
    return value
