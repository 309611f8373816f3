"""Text leaves of raw records and of trajectories: what a reader must not lose."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Set
from typing import Any

import msgspec

from agentmill.schemas.records.trajectory import Trajectory


def leaves(value: Any, structure: Set[str] = frozenset()) -> Counter[str]:
    """The texts in ``value`` that are not empty; of a text that is a JSON object or list, those inside it.

    ``structure`` are keys whose texts say what kind of thing stands there, which ours say by their class.
    """
    found: Counter[str] = Counter()
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            stack.extend(inner for key, inner in each.items() if not (key in structure and isinstance(inner, str)))
        elif isinstance(each, list | tuple):
            stack.extend(each)
        elif isinstance(each, str) and each:
            container = _container(each)
            if container is None:
                found[each] += 1
            else:
                stack.append(container)
    return found


def held(runs: Iterable[Trajectory]) -> Counter[str]:
    """The texts of trajectories, ``extra`` included."""
    return leaves([msgspec.to_builtins(run) for run in runs])


def _container(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None
