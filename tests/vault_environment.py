"""A vault with dials: worlds in which something has to be remembered, and agents that know what is in their prompt.

``task.goal["code"]`` is the letter of each dial. ``look`` shows it, at the first turn only; ``wait`` does nothing;
``try N X`` turns dial N to X, which clicks or stays silent. After as many tries as there are dials the vault is open,
or shut for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import (
    AnyAction,
    AnyItem,
    AnyObservation,
    ApiAction,
    MessageAction,
    TextObservation,
    Usage,
)
from agentmill.synthesis.environments import ENVIRONMENTS
from agentmill.synthesis.environments.environment import Check, Transition
from agentmill.synthesis.policies import POLICIES
from agentmill.synthesis.policies.completion import token_delta
from agentmill.synthesis.policies.policy import Conversation, PolicySettings, Turn, Unreachable

SPEC = EnvironmentSpec(environment_id="vault", family="vault", name="vault", source="")


def vault_task(code: str, task_id: str | None = None) -> Task:
    """Open the vault of this code."""
    return Task(
        task_id=task_id or f"vault-{code}",
        environment_id="vault",
        instruction="Open the vault.",
        goal={"code": code},
        max_turns=12,
        split="train",
    )


class VaultEnvironment:
    """Implements ``Environment``."""

    def __init__(self, spec: EnvironmentSpec = SPEC) -> None:
        self.spec = spec
        self.tools = []
        self.rules = "There are dials. Write: look, wait, or: try N X."
        self.task = vault_task("a")
        self.state: list[str] = []

    def reset(self, task: Task, seed: int) -> AnyObservation:
        self.task, self.state = task, []
        return _text("You are before the vault.")

    def step(self, action: AnyAction) -> Transition:
        said = action.content if isinstance(action, MessageAction) else ""
        tried = re.fullmatch(r"try (\d) (.)", said)
        if tried is None and said not in ("look", "wait"):
            return Transition(observation=_text("Only look, wait and try are possible."), error=True)
        first = not self.state
        self.state.append(said)
        if tried is None:
            seen = f"The code is {self._code}." if said == "look" and first else "Nothing happens."
            return Transition(observation=_text(seen))
        clicks = self._code[int(tried[1]) - 1] == tried[2]
        over = sum(each.startswith("try") for each in self.state) == len(self._code)
        return Transition(
            observation=_text(f"Dial {tried[1]} {'clicks' if clicks else 'is silent'}."),
            reward=float(clicks) / len(self._code),
            terminated=over,
        )

    def state_digest(self) -> str:
        return "/".join(self.state) or "shut"

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.state)

    def restore(self, snapshot: bytes) -> None:
        self.state = msgspec.json.decode(snapshot)

    def check(self) -> Check:
        right = sum(f"try {place} {letter}" in self.state for place, letter in enumerate(self._code, start=1))
        return Check(passed=right == len(self._code), score=right / len(self._code))

    def admissible(self) -> list[ApiAction]:
        return []

    def command(self, action: ApiAction) -> str:
        return action.function

    def expert(self) -> ApiAction | None:
        return None

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _code(self) -> str:
        code: str = self.task.goal["code"]
        return code


class Keeper:
    """Looks, waits until turn 9, and then tries the code if it sees it; its notes are what it sees of the code.

    With ``turns: [deaf]`` its notes never say anything. Its tokens are the words that it is shown, then its answer.
    """

    def __init__(self, settings: PolicySettings) -> None:
        self.name, self.model, self.revision, self.sampling = "keeper", settings.name, settings.revision, {}
        self.spending = None
        self._deaf = settings.turns == ["deaf"]
        self.prompts: list[list[int]] = []
        self.contexts: list[list[AnyItem]] = []
        self.noted: list[str] = []
        self._vocabulary: dict[str, int] = {}

    async def act(self, conversation: Conversation) -> Turn:
        text = "\n".join(f"{type(item).__name__} {item.content}" for item in conversation.content)  # type: ignore[union-attr]
        found = re.search(r"The code is (.)\.", text)
        if "Write the notes anew" in conversation.system_prompt:
            self.noted.append(text)
            said = f"The code is {found[1]}." if found and not self._deaf else "Nothing of note."
            return Turn(actions=[MessageAction(content=said)], usage=Usage(completion_tokens=100))
        turn = 1 + max([item.turn for item in conversation.content if item.turn] or [0])
        if left_out := re.search(r"Turns 1 to (\d+)", text):
            turn = max(turn, 1 + int(left_out[1]))
        said = "look" if turn == 1 else "wait" if turn < 9 else f"try 1 {found[1] if found else '?'}"
        self.contexts.append(list(conversation.content))
        self.prompts.append(self._ids(text))
        tokens = token_delta(conversation.content, self.prompts[-1], self._ids(f"\nMessageAction {said}"), [], "stop")
        return Turn(
            actions=[MessageAction(content=said, tokens=tokens)], usage=Usage(prompt_tokens=9, completion_tokens=1)
        )

    async def close(self) -> None:
        """Nothing is held."""

    def _ids(self, text: str) -> list[int]:
        return [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in text.split()]


class Cracker:
    """Tries each dial: as it clicked in the last attempt that its prompt tells of, or in any if asked to combine them.

    Where nothing is known it tries a letter by the number of its attempt: with ``turns: [ab, cd]`` first ``try 1 a``
    and ``try 2 b``, in the next one ``try 1 c`` and ``try 2 d``. Its server is gone after ``left`` turns.
    """

    left: int | None = None
    taken = 0

    def __init__(self, settings: PolicySettings) -> None:
        self.name, self.model, self.revision, self.sampling = "cracker", settings.name, settings.revision, {}
        self.spending = None
        self._guesses = settings.turns

    async def act(self, conversation: Conversation) -> Turn:
        if Cracker.left is not None and Cracker.taken >= Cracker.left:
            raise Unreachable("nobody is there")
        Cracker.taken += 1
        told = "\n".join(getattr(item, "content", "") for item in conversation.content if item.turn == 0)
        attempts = re.split(r"Attempt (\d+):\n", told)[1:]
        texts = attempts[1::2] if "their best parts" in told else attempts[1::2][-1:]
        known = {dial: letter for text in texts for dial, letter in re.findall(r"> try (\d) (.)\nDial \d clicks", text)}
        number = max([int(each) for each in attempts[::2]] or [0])
        dial = 1 + sum(isinstance(item, MessageAction) for item in conversation.content)
        guess = self._guesses[number % len(self._guesses)][dial - 1]
        return Turn(actions=[MessageAction(content=f"try {dial} {known.get(str(dial), guess)}")])

    async def close(self) -> None:
        """Nothing is held."""


@contextmanager
def registered() -> Iterator[None]:
    """The world and its policies under the names ``vault``, ``keeper`` and ``cracker``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS._entries, "vault", "tests.vault_environment:VaultEnvironment")
        patch.setitem(POLICIES._entries, "keeper", "tests.vault_environment:Keeper")
        patch.setitem(POLICIES._entries, "cracker", "tests.vault_environment:Cracker")
        yield


def _text(content: str) -> TextObservation:
    return TextObservation(content=content, source="environment")
