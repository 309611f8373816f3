"""The session of an environment: its source and its data, which only the functions that it offers can tell of.

Offered are the functions in ``spec.parameters["functions"]`` where there are such, and else all functions of the source
whose names do not begin with ``_``. Data are hidden where functions are listed, and else where their name begins with
``_``; the agent gets copies of others.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.sandbox import Result, Session

NAMING = """
def _names(**names):
    globals().update(names)
"""
RESERVED = frozenset({"submit", "_submitted", "_submission", "_names", "_functions"})
"""Names of sessions themselves, which neither functions nor data of an environment may have."""

_LISTING = """
def _functions():
    import inspect
    found = {}
    for name, value in globals().items():
        if callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == "__main__":
            try:
                found[name] = f"{name}{inspect.signature(value)}\\n\\n{inspect.getdoc(value) or ''}".strip()
            except (TypeError, ValueError):
                found[name] = name
    return found
"""


def begin(session: Session, source: str, names: JsonObject) -> Result:
    """Set up a fresh session with an environment's source and a task's data; returns the failed or the last result."""
    result = session.run(source)
    if result.ok:
        result = session.run(NAMING)
    return session.call("_names", names) if result.ok else result


def offered(session: Session, spec: EnvironmentSpec) -> dict[str, str]:
    """The functions that an environment offers after its reset, with their docstrings. Raises ``EnvError``."""
    result = session.run(_LISTING)
    found = session.call("_functions") if result.ok else result
    if not found.ok or not isinstance(found.value, dict):
        raise EnvError(f"environment {spec.environment_id} does not start: {found.error or 'it lists no functions'}")
    listed = _listed(spec)
    return {
        name: str(about)
        for name, about in found.value.items()
        if name not in RESERVED and (name in listed if listed is not None else not name.startswith("_"))
    }


def names_given(spec: EnvironmentSpec, task: Task) -> JsonObject:
    """The data that the agent gets, by name."""
    names = task.initial_state.get("names", {})
    if _listed(spec) is not None:
        return {}
    return {name: value for name, value in names.items() if not name.startswith("_")}


def _listed(spec: EnvironmentSpec) -> frozenset[str] | None:
    """The functions that an environment says it has, ``None`` if it says nothing."""
    functions = spec.parameters.get("functions")
    if not isinstance(functions, list):
        return None
    return frozenset(str(each.get("name")) for each in functions if isinstance(each, Mapping))
