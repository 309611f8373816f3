"""What becomes of an episode on a simulated server, told without a server: the same answers, in this process."""

from __future__ import annotations

import msgspec

from agentmill.schemas.records.task import Task
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.completion import read_turn
from agentmill.synthesis.policies.openai import VllmPolicy
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, PolicySettings, Turn
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample
from tests.simulated.answers import Behaviour, answer
from tests.simulated.environment import SPECS, SimulatedEnvironment
from tests.simulated.stage import SEED


class Oracle(VllmPolicy):
    """Knows what the server would say to each request, and fails where the server would in the end."""

    def __init__(self, settings: PolicySettings, behaviour: Behaviour) -> None:
        super().__init__(settings)
        self._behaviour = behaviour

    async def act(self, conversation: Conversation) -> Turn:
        made = answer(self._behaviour, msgspec.json.decode(msgspec.json.encode(self.body(conversation))))
        if made.status != 200:
            raise ContextOverflow(made.body.decode())
        if made.fault == "hang":
            raise PolicyError("timeout", "it hangs")
        if made.fault == "malformed" and made.stubborn:
            raise PolicyError("malformed", "it is cut off")
        return read_turn(made.body, 0.0, conversation)


async def outcome(task: Task, settings: PolicySettings, behaviour: Behaviour) -> tuple[str, str]:
    """(id, what becomes of it): of a trajectory its status, or what cut it short; of a lost episode the reason."""
    (spec,) = [spec for spec in SPECS if spec.environment_id == task.environment_id]
    told = Exploration(
        task=task,
        spec=spec,
        make_environment=lambda: SimulatedEnvironment(spec),
        policies={"actor": Oracle(settings, behaviour)},
        seed=SEED,
    )
    [trajectory_id] = Sample().planned(told)
    try:
        [trajectory] = [run async for run in Sample().explore(told, trajectory_id)]
    except EnvError:
        return trajectory_id, "world_error"
    except PolicyError as error:
        return trajectory_id, error.reason
    return trajectory_id, trajectory.outcome.reason or trajectory.outcome.status
