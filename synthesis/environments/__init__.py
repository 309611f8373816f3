"""Environments by family. A new family is one module and one line here; ``conformance`` then checks its examples."""

from __future__ import annotations

from collections.abc import Iterable

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.schemas.registry import Registry
from agentmill.synthesis.environments.environment import EnvError, Environment, Family

ENVIRONMENTS: Registry[Family] = Registry(
    "environment",
    {
        "babyai": "agentmill.synthesis.environments.babyai.environment:BabyaiEnvironment",
        "codegym": "agentmill.synthesis.environments.codegym.environment:CodegymEnvironment",
        "gymnasium": "agentmill.synthesis.environments.gymnasium_text.environment:GymnasiumEnvironment",
        "interpreter": "agentmill.synthesis.environments.interpreter.environment:InterpreterEnvironment",
        "pddl": "agentmill.synthesis.environments.pddl.environment:PddlEnvironment",
        "search": "agentmill.synthesis.environments.search.environment:SearchEnvironment",
        "toolbox": "agentmill.synthesis.environments.toolbox.environment:ToolboxEnvironment",
    },
    group="environments",
)

DESCRIBED = "described"
"""The family of environments that are only described: ``source`` is the system prompt, ``tools`` are the tools."""


def blocks(spec: EnvironmentSpec) -> bool:
    """Whether an environment of ``spec`` may block on something. Raises ``UserError`` for an unknown family."""
    if spec.family == DESCRIBED:
        return False
    return bool(getattr(ENVIRONMENTS.load(spec.family), "blocking", False))


def check_admissible(parameter: str, families: Iterable[str]) -> None:
    """Raises ``UserError`` where ``parameter`` lets an agent choose among admissible actions in a family that hides
    some.

    A family whose packages are not installed is believed: who makes its environments says what is missing.
    """
    for family in sorted(families):
        try:
            lists_all = family != DESCRIBED and getattr(ENVIRONMENTS.load(family), "lists_admissible", True)
        except ModuleNotFoundError:
            continue
        if not lists_all:
            raise UserError(
                f"`{parameter}`: environments of family {family!r} do not list all legal actions to choose from\n"
                "leave it out, or use environments of a family that lists all of them, such as pddl",
                ErrorCode.ACTIONS_NOT_LISTED,
            )


def extra_of(family: str) -> str | None:
    """The extra of the package that environments of a family need, if any."""
    return None if family not in ENVIRONMENTS else getattr(ENVIRONMENTS.load(family), "extra", None)


def is_sandboxed(family: str) -> bool:
    """Whether environments of a family run code in a sandbox."""
    return family in ENVIRONMENTS and bool(getattr(ENVIRONMENTS.load(family), "sandboxed", False))


def make(spec: EnvironmentSpec) -> Environment:
    """An environment of ``spec``. Raises ``UserError`` for an unknown family, ``EnvError`` for a broken spec."""
    if spec.family == DESCRIBED:
        raise EnvError(
            f"environment {spec.name!r} is only described: episodes in it can be imagined or simulated, not replayed"
        )
    family: Family = ENVIRONMENTS.load(spec.family)
    return family(spec)
