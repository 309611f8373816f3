"""What can be put around an environment, and how a family of environments declares that it can be wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.renaming.renaming import Names, Style

OPERATOR = "wrap_env"
NOTE = "wrapping"
"""The key of ``lineage.notes`` under which an environment keeps what is around it."""


class Wrapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is put around an environment. Of toolboxes: tools with a twin, tools of another matter, the level of a
    policy (0: none), slots that the user keeps back per task, the share of calls that fail once; hints with refusals,
    rewards on the way. Of all families that have wrappers: the style of other names, and which ``names`` are meant.

    ``user``: what is kept back is answered by the tool ``ask_user``, or by a person, who finds it in ``goal.user``."""

    twins: int = 0
    distractors: int = 0
    policy: int = 0
    hidden: int = 0
    faults: float = 0.0
    hints: bool = False
    milestones: bool = False
    user: Literal["tool", "person"] = "tool"
    rename: Style | None = None
    names: Names = "all"

    @property
    def asks(self) -> bool:
        """Whether the agent asks by the tool ``ask_user``."""
        return self.hidden > 0 and self.user == "tool"

    def without_rename(self) -> Wrapping:
        """The other wrappers."""
        return msgspec.structs.replace(self, rename=None, names="all")

    def note(self) -> JsonObject:
        """The wrapping as the JSON object that a lineage holds of it, without what is not used."""
        # By value: msgspec omits defaults by identity, and what was read or pickled is equal, not the same.
        unused = Wrapping()
        return {
            name: value for name in self.__struct_fields__ if (value := getattr(self, name)) != getattr(unused, name)
        }


class Wrapper(msgspec.Struct, frozen=True):
    """How environments of a family, and then tasks of them, are wrapped: the same for the same arguments.

    ``task`` is called with the wrapped environment and must prove the solution in it. Both give a ``GenerationError``
    with its reason where something has no wrapped form, and raise ``EnvError`` for what is broken as it is.
    """

    environment: Callable[[EnvironmentSpec, Wrapping, int], EnvironmentSpec | GenerationError]
    task: Callable[[Task, EnvironmentSpec, Wrapping, int], Task | GenerationError]


def wrapped_environment_id(environment_id: str, wrapping: Wrapping, seed: int) -> str:
    """The id of a wrapped environment."""
    return digest(OPERATOR, environment_id, wrapping.note(), seed)


def wrapped_task_id(task_id: str, environment_id: str) -> str:
    """The id of a task in the wrapped environment ``environment_id``."""
    return digest(OPERATOR, task_id, environment_id)
