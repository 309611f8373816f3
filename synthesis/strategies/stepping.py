"""Worlds as strategies meet them, and one action carried out: the same for an episode that is lived or replayed.

Whatever an environment raises here is its fault, and leaves as ``WorldError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from schemas.errors import UserError
from schemas.trajectory import AnyAction, ApiAction, TextObservation
from synthesis.environments.environment import Environment, Transition, WorldError


@contextmanager
def world_at_fault() -> Iterator[None]:
    """Turn whatever is raised inside into a ``WorldError``, but for what the user must see to, which stops the run."""
    try:
        yield
    except (WorldError, UserError):
        raise
    except Exception as error:
        raise WorldError(f"{type(error).__name__}: {error}") from error


def carry_out(environment: Environment, action: AnyAction) -> Transition:
    """Step the environment. A call whose arguments are no JSON object is refused before it gets there."""
    if isinstance(action, ApiAction) and action.raw_arguments is not None:
        content = f"The arguments of {action.function} must be a JSON object, but were: {action.raw_arguments}"
        return Transition(observation=TextObservation(content=content, source="environment"), error=True)
    with world_at_fault():
        return environment.step(action)


def blamed(make: Callable[[], Environment]) -> Environment:
    """The world that ``make`` makes; what is raised by that, and later by closing it, leaves as ``WorldError``.

    Raises ``UserError``, too, where ``make`` does: for a package that is missing.
    """
    try:
        made: Any = Closing(make())
    except (UserError, WorldError):
        raise
    except Exception as error:
        raise WorldError(f"{type(error).__name__}: {error}") from error
    return made  # type: ignore[no-any-return]


class Closing:
    """A world whose fault it is if it cannot be closed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def close(self) -> None:
        """As ``Environment.close``. Raises ``WorldError``."""
        with world_at_fault():
            self._environment.close()
