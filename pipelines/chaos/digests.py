"""What a run made, in a form that two runs of one recipe have in common: rows without times, models by their bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import msgspec

from agentmill.schemas.records.manifest import MANIFEST_NAME
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Table, read_shard

TIMES = frozenset({"seconds", "cached_tokens"})
"""Fields of records that report how long something took, and what a server happened to have in its cache."""

WEIGHTS = (".safetensors",)
_ATTEMPT = re.compile(r"[0-9a-f]{8,}")
"""The part of a file's name that differs from attempt to attempt."""


def digests_of(run_dir: Path) -> dict[str, str]:
    """A digest by path for every file of a run: of rows, of weights, or ``there`` for a file that may differ.

    Rows are those that the manifest of their table lists. Logs and locks, which no reader needs, are left out.
    Raises ``UserError`` for a table that cannot be read.
    """
    found: dict[str, str] = {}
    for path in sorted(each for each in run_dir.rglob("*") if each.is_file()):
        name = path.relative_to(run_dir)
        if path.suffix in (".log", ".lock") or name.name == ".lock":
            continue
        if path.name == MANIFEST_NAME:
            found[str(name)] = rows_digest(Table.open(path.parent))
        elif path.suffix in WEIGHTS:
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[_ATTEMPT.sub("*", str(name))] = "there"
    return found


def rows_digest(table: Table) -> str:
    """A digest of the rows of a table and of what it dropped, in their order, without the seconds that they took."""
    digest = hashlib.sha256()
    dropped = (row for path in table.dropped_shards() for row in read_shard(path, Dropped))
    for row in chain(table.rows(), dropped):
        digest.update(msgspec.json.encode(timeless(msgspec.to_builtins(row)), order="deterministic"))
    return digest.hexdigest()


def timeless(value: object) -> object:
    """``value`` without the fields named in ``TIMES``, at any depth."""
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def differences(baseline: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """How ``found`` differs from the baseline run, one line each."""
    lines = [f"{name} is missing" for name in sorted(baseline.keys() - found.keys())]
    lines += [f"{name} is left over" for name in sorted(found.keys() - baseline.keys())]
    return lines + [
        f"{name} differs" for name in sorted(baseline.keys() & found.keys()) if baseline[name] != found[name]
    ]
