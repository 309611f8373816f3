"""Agents that talk by scripts, for tests of ``multi_agent``."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import msgspec

from agentmill.schemas.chat import to_messages
from agentmill.schemas.dialects.tool_text import written_out
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction, Trajectory, Usage
from agentmill.schemas.views.roles import Perspective, perspectives
from agentmill.synthesis.policies.completion import token_delta
from agentmill.synthesis.policies.policy import Conversation, Turn
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from tests.answer_environment import SPEC, AnswerEnvironment, question

WITHIN_99_9 = 3.29
"""Standard errors on either side of a mean that 99.9 % of all samples lie in."""

PAIR = [
    {"name": "ann", "acts": True, "knows": "goal.secrets.ann"},
    {"name": "bob", "knows": "goal.secrets.bob", "prompt": "Answer with what you know."},
]
WATCHED = [{"name": "actor", "acts": True}, {"name": "critic", "veto": "NO"}]


class Speaker:
    """Says what ``script`` makes of a conversation, and keeps each one. Its tokens are the words it reads and says."""

    name = "speaker"
    spending = None

    def __init__(self, script: Callable[[Conversation], str | AnyAction], model: str | None = None) -> None:
        self.model, self.revision, self.sampling = model, None, dict[str, Any]()
        self._script = script
        self._vocabulary: dict[str, int] = {}
        self.asked: list[Conversation] = []

    async def act(self, conversation: Conversation) -> Turn:
        self.asked.append(conversation)
        said = self._script(conversation)
        action = MessageAction(content=said) if isinstance(said, str) else said
        prompt = [part for message in prompt_of(conversation) for part in self.ids(message)]
        sampled = self.ids(to_messages(None, [action])[0])
        tokens = token_delta(conversation.content, prompt, sampled, [-0.5] * len(sampled), "stop")
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=len(sampled))
        return Turn(actions=[msgspec.structs.replace(action, tokens=tokens)], usage=usage)

    async def close(self) -> None:
        """Nothing is held."""

    def ids(self, message: Message) -> list[int]:
        """The tokens of a message."""
        calls = " ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
        words = f"<{message.role}> {message.content or ''} {calls}".split()
        return [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]

    @property
    def prompts(self) -> list[list[int]]:
        """The tokens of each prompt."""
        return [[part for message in prompt_of(each) for part in self.ids(message)] for each in self.asked]


def prompt_of(conversation: Conversation) -> list[Message]:
    """The messages that a model is sent."""
    plain = to_messages(conversation.system_prompt, conversation.content)
    return [message for message, _ in written_out(plain, conversation.tools, conversation.tool_format)]


def heard(conversation: Conversation) -> list[str]:
    """What an agent is shown and said itself, message by message, without the system prompt."""
    return [str(getattr(item, "content", "")) for item in conversation.content]


def last(conversation: Conversation) -> str:
    """What it is shown last."""
    return heard(conversation)[-1]


def lines(*said: str) -> Speaker:
    """Says these one after the other, then the last one again and again."""
    return Speaker(lambda conversation: said[min(own(conversation), len(said) - 1)])


def own(conversation: Conversation) -> int:
    """How often it has had its turn in this conversation."""
    return sum(isinstance(item, MessageAction | ApiAction) for item in conversation.content)


def secret(conversation: Conversation) -> str:
    """What only this agent knows."""
    found = re.search(r"What only you know:\n(.*)", conversation.system_prompt)
    assert found is not None
    return found[1]


def exploration(task: Task, seed: int = 7, make: Any = AnswerEnvironment, **policies: Any) -> Exploration:
    """An exploration of ``task``. Where nobody is called ``actor``, the first policy is."""
    policies = {"actor": next(iter(policies.values())), **policies}
    return Exploration(task=task, spec=SPEC, make_environment=make, policies=policies, seed=seed)


async def talk(
    task: Task, roles: list[dict[str, Any]], make: Any = AnswerEnvironment, seed: int = 7, **given: Any
) -> Trajectory:
    """The one episode of these agents; what is given is a policy, by its role, or a parameter."""
    policies = {name: given.pop(name) for name in [role["name"] for role in roles] if name in given}
    explored = exploration(task, seed, make, **policies)
    strategy = MultiAgent.model_validate({"roles": roles, **given})
    [piece] = strategy.planned(explored)
    [trajectory] = [each async for each in strategy.explore(explored, piece)]
    return trajectory


def spoken(trajectory: Trajectory) -> list[tuple[str | None, str | None, str]]:
    """(agent, role, what) of each action."""
    found = []
    for item in trajectory.content:
        if isinstance(item, MessageAction):
            found.append((item.agent, item.role, item.content))
        elif isinstance(item, ApiAction):
            found.append((item.agent, item.role, f"{item.function} {item.kwargs.get('text', '')}".strip()))
    return found


def calls(trajectory: Trajectory) -> dict[str, int]:
    """How often each agent was asked."""
    return {name: each.calls for name, each in of_roles(trajectory).items()}


def of_roles(trajectory: Trajectory) -> dict[str, Perspective]:
    found = perspectives(trajectory)
    assert found, "it has roles"
    return found


def asker(conversation: Conversation) -> str:
    """Asks for as many letters as are missing, one at a time; then answers with its own part and these."""
    n, got = int(secret(conversation)[0]), [each[-1] for each in heard(conversation) if each.startswith("bob: ")]
    return f"@bob {len(got)}" if len(got) < n else f"answer {secret(conversation)[1:]}{''.join(got)}"


def teller(conversation: Conversation) -> str:
    return secret(conversation)[int(last(conversation).rsplit(" ", 1)[1])]


def split(word: str, n: int) -> Any:
    """The task whose answer is known in parts: the last ``n`` letters to bob, the others to ann."""
    return question(word, {"ann": f"{n}{word[:-n]}", "bob": word[-n:]})


def chance(p: float) -> Speaker:
    return Speaker(lambda said: "right" if random.Random(said.seed).random() < p else "left")


def critic(d: float = 1.0) -> Speaker:
    """Vetoes ``left`` with probability ``d``, and never ``right``."""

    def judge(conversation: Conversation) -> str:
        wrong = last(conversation) == "actor: left" and random.Random(conversation.seed).random() < d
        return "NO, that is one less." if wrong else "OK"

    return Speaker(judge)
