"""What an agent does, as a call, and calls that a tool refuses."""

from __future__ import annotations

from schemas.record import JsonObject
from schemas.trajectory import AnyAction, ApiAction, CodeAction, MessageAction
from synthesis.environments.toolbox.arguments import Unfit, text_argument
from synthesis.environments.toolbox.command import read_command


class Unmet(Exception):
    """A call that the tool refuses; ``told`` is what the agent is told."""

    def __init__(self, told: JsonObject) -> None:
        super().__init__(str(told))
        self.told = told


def read_call(action: AnyAction) -> ApiAction:
    """The call that an action is, or says. Raises ``Unfit`` for code, ``Unreadable`` for other texts."""
    if isinstance(action, CodeAction):
        raise Unfit("Code is not run here. Call a tool.")
    return read_command(action.content) if isinstance(action, MessageAction) else action


def same_call(gold: AnyAction, call: ApiAction) -> bool:
    """Whether ``call`` is the action ``gold`` of a solution."""
    return isinstance(gold, ApiAction) and (gold.function, gold.kwargs) == (call.function, call.kwargs)


def only_text(call: ApiAction, name: str) -> str:
    """The text that is the only argument, ``name``, of a call. Raises ``Unfit``."""
    if list(call.kwargs) != [name]:
        raise Unfit(f"{call.function} takes one argument, {name!r}, a text.")
    return text_argument(call.kwargs[name], f"{call.function}: the argument {name!r}")
