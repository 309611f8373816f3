"""The expert: acts by the environment's own planner or gold solution."""

from __future__ import annotations

from schemas.trajectory import AnyAction, MessageAction
from synthesis.policies.policy import Conversation, PolicyError, Turn
from synthesis.policies.settings import PolicySettings


class ExpertPolicy:
    """Asks ``environment.expert()`` for each action; speaks in commands or in calls, as the conversation asks for."""

    def __init__(self, settings: PolicySettings) -> None:
        self.name = "expert"
        self.model = None
        self.revision = settings.revision
        self.sampling = settings.sampling
        self.spending = None

    async def act(self, conversation: Conversation) -> Turn:
        """One action of a good plan. Raises ``PolicyError`` (``no_plan``) where the environment knows none."""
        environment = conversation.environment
        if environment is None:
            raise PolicyError("no_environment", "the expert needs the live environment, and was given none")
        call = environment.expert()
        if call is None:
            raise PolicyError("no_plan", "the environment knows no way to the goal from the current state")
        action: AnyAction = call if conversation.tools else MessageAction(content=environment.command(call))
        return Turn(actions=[action])

    async def close(self) -> None:
        """Nothing is held."""
