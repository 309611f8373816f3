"""An environment that a model plays: it answers the actions of an agent with observations.

The model is given the description of an environment, not its code (Simia, arXiv:2511.01824; WebEvolver,
arXiv:2504.21024). Calls are checked against the schemas of their tools before it is asked, a repeated action that
changed nothing has the answer it had, and an answer that breaks a rule is asked for again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, Literal

import msgspec

from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, tool_list
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject, Record
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
from agentmill.synthesis.environments.environment import (
    Check,
    EnvError,
    Environment,
    Transition,
    misfit,
    misfit_value,
    refusal,
)
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.json_objects import answer_in
from agentmill.synthesis.policies.policy import Conversation, Policy, Turn
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.llm_calls import text_of, total, transcript, turn_of
from agentmill.synthesis.rollouts.step import carry_out, environment_at_fault
from agentmill.synthesis.strategies.imagined_rollout import Fault

SIMULATOR = "simulator"
"""The role of the model that plays the environment, and the field in ``extra`` that names it."""

RESULTS = "results"
"""In the ``parameters`` of an environment that is only described: a JSON Schema of what a tool answers, by its name."""


class SimulatedAnswer(Record):
    """What the model answers to an action."""

    observation: str
    error: bool
    changes: bool
    end: Literal["no", "success", "failure"]


ANSWER_SCHEMA: JsonObject = msgspec.json.schema_components([SimulatedAnswer])[1]["SimulatedAnswer"]


class AnswerRules(msgspec.Struct, frozen=True):
    """What an answer must keep to: at most ``max_chars`` characters, and of a call of a tool in ``results`` JSON that
    fits its schema, unless it is a refusal or ends the episode. It is asked for again at most ``retries`` times."""

    retries: int
    max_chars: int
    results: Mapping[str, JsonObject]


class SimulatedEnvironment:
    """An environment whose answers a policy makes; implements ``Environment``.

    ``real`` is the environment that is described, where it can be made: it gives the rules, the tools and the first
    observation. It also follows the actions where an expert plays one of the two sides, and only there.
    ``answer`` asks the policy, and ``step`` then returns its answer.
    """

    def __init__(self, spec: EnvironmentSpec, real: Environment | None, policy: Policy, rules: AnswerRules) -> None:
        self.spec = spec
        self.rules = spec.source if real is None else real.rules
        self.tools = spec.tools if real is None else real.tools
        self.lists_admissible = getattr(real, "lists_admissible", True) if real is not None else False
        self.asked = 0
        """Actions that were put to the model."""
        self.counts: Counter[str] = Counter()
        """Actions that were answered without it (``invalid``, ``repeated``), and answers asked for again, by reason."""
        self.claim: Literal["success", "failure", "unfinished"] = "unfinished"
        """How the episode ended, as the model claims."""
        self._real = None if real is None else Follower(real)
        self._policy = policy
        self._answers = rules
        self._with_tools = False
        self._history: list[AnyItem] = []
        self._known: dict[tuple[type[AnyAction], str], Transition] = {}
        self._next: Transition | None = None
        self._state = ""

    def reset(self, task: Task, seed: int) -> AnyObservation:
        """What the real environment shows first; an empty text of one that is only described."""
        self._state = digest(SIMULATOR, task.task_id)
        if self._real is None:
            return TextObservation(content="", source="environment")
        return self._real.environment.reset(task, seed)

    def introduce(self, task: Task, opening: Sequence[AnyItem], examples: Sequence[str], with_tools: bool) -> None:
        """Give the model the description, the task, what the agent was shown first, and ``examples`` as texts.

        ``with_tools`` says that the agent calls tools, so that a message of it is one to the user.
        """
        self._with_tools = with_tools and bool(self.tools)
        shown = "\n".join(text for text in (transcript([item]) for item in opening[1:]) if text)
        results = msgspec.json.encode(self._answers.results).decode() if self._answers.results else ""
        given = {
            "rules": self.rules,
            "tools": tool_list(self.tools, TOOL_TEXTS["json"]) if self._with_tools else "",
            "results": f"What tools answer is JSON. Schemas by tool: {results}" if results else "",
            "examples": prompt("simulated_examples").replace("{examples}", "\n\n".join(examples)) if examples else "",
            "task": task.instruction,
            "state": f"The state at the start: {_json(task.initial_state)}" if task.initial_state else "",
            "start": f"The agent was shown: {shown}" if shown else "",
        }
        written = Template(prompt("simulated_opening")).substitute(given)
        text = re.sub(r"\n{3,}", "\n\n", written).strip()
        self._history = [TextObservation(content=text, source="user")]

    async def answer(self, action: AnyAction, episode_id: str, seed: int) -> Usage:
        """Prepare what ``step`` returns for ``action``; what that cost.

        Raises ``PolicyError``, and ``GenerationError`` (``simulator_empty`` …) for an answer that stays faulty.
        """
        text = action_text(action)
        key = (type(action), text)
        wrong = self._invalid(action)
        if wrong is not None:
            self.counts["invalid"] += 1
            self._next = refusal(wrong)
            return Usage()
        if key in self._known:
            self.counts["repeated"] += 1
            self._next = self._known[key]
            return Usage()
        self.asked += 1
        if self._real is not None:
            self._real.waiting.append(action)
        found, usage = await self._ask(action, text, episode_id, seed)
        to_user = self._with_tools and isinstance(action, MessageAction)
        source: Literal["user", "environment"] = "user" if to_user else "environment"
        observation = TextObservation(content=found.observation, source=source, synthetic=True)
        self._next = Transition(observation=observation, terminated=found.end != "no", error=found.error)
        self.claim = found.end if found.end != "no" else self.claim
        if found.changes:
            self._known = {}
            self._state = digest(self._state, text, found.observation)
        else:
            self._known[key] = self._next
        return usage

    def step(self, action: AnyAction) -> Transition:
        """The answer that was prepared for ``action``. Raises ``EnvError`` without one."""
        if self._next is None:
            raise EnvError(f"no answer was prepared for {action_text(action)!r}")
        prepared, self._next = self._next, None
        return prepared

    def state_digest(self) -> str:
        """Digest of the task and of the answers that changed something, by which states are told apart."""
        return self._state

    def snapshot(self) -> bytes:
        """Raises ``EnvError``: what the model has in mind cannot be saved."""
        raise EnvError("a simulated environment has no state that can be saved")

    def restore(self, snapshot: bytes) -> None:  # noqa: ARG002 - part of the contract
        """Raises ``EnvError``, as ``snapshot``."""
        raise EnvError("a simulated environment has no state that can be restored")

    def check(self) -> Check:
        """Raises ``EnvError``: there is no real state to check."""
        raise EnvError("a simulated environment has no state that can be checked")

    def admissible(self) -> list[ApiAction]:
        """Those of the real environment; none of one that is only described."""
        return [] if self._real is None else self._real.followed().admissible()

    def command(self, action: ApiAction) -> str:
        """As in the real environment; JSON for one that is only described."""
        return action_text(action) if self._real is None else self._real.environment.command(action)

    def expert(self) -> ApiAction | None:
        """That of the real environment, in the state to which the actions lead there."""
        return None if self._real is None else self._real.followed().expert()

    def close(self) -> None:
        """Close the real environment."""
        if self._real is not None:
            self._real.environment.close()

    def _invalid(self, action: AnyAction) -> str | None:
        """What is wrong with a call by the schemas of the tools, if anything is."""
        if not isinstance(action, ApiAction):
            return None
        tool = next((each for each in self.tools if each.name == action.function), None)
        if tool is None:
            return f"There is no tool {action.function!r}; there are {', '.join(each.name for each in self.tools)}."
        wrong = misfit(action, tool)
        return None if wrong is None else f"{action.function} does not take these arguments: {wrong}"

    async def _ask(self, action: AnyAction, text: str, episode_id: str, seed: int) -> tuple[SimulatedAnswer, Usage]:
        """The answer of the model to an action that is put to it, and what it cost with its repeats."""
        question = TextObservation(content=text, source="user", turn=self.asked)
        asked: list[AnyItem] = [*self._history, question]
        content, usage, history = asked, Usage(), list[JsonObject]()
        for attempt in range(1 + self._answers.retries):
            conversation = Conversation(
                episode_id=episode_id,
                system_prompt=prompt("simulated_system"),
                content=tuple(content),
                tools=[],
                seed=derive_seed(seed, SIMULATOR, attempt),
                answer_schema=ANSWER_SCHEMA,
                stand_in=None if self._real is None else self._real.last_answer,
            )
            turn = await turn_of(self._policy, conversation)
            usage = total(usage, turn.usage)
            replied = text_of(turn)
            try:
                found = self._read(turn, replied, action)
            except Fault as fault:
                self.counts[fault.reason] += 1
                history.append({"action": text, "reason": fault.reason, "fault": fault.detail, "text": replied})
                # At temperature 0 the same question has the same answer, so the next try says what was wrong.
                again = prompt("simulated_again").replace("{fault}", fault.detail)
                answered = MessageAction(content=replied.strip() or "(nothing)", turn=self.asked)
                content = [*asked, answered, TextObservation(content=again, source="user", turn=self.asked)]
                continue
            self._history = [*asked, MessageAction(content=_json(found), turn=self.asked)]
            return found, usage
        last = history[-1]
        raise GenerationError(
            f"{SIMULATOR}_{last['reason']}",
            f"the simulator's answer to {text!r} is still faulty after {self._answers.retries} retries:"
            f" {last['fault']}",
            history,
        )

    def _read(self, turn: Turn, replied: str, action: AnyAction) -> SimulatedAnswer:
        """The answer in a turn. Raises ``Fault`` for one that breaks a rule."""
        if not replied.strip():
            raise Fault("empty", "it is empty")
        if turn.finish_reason == "length":
            raise Fault("too_long", "it was cut off at the most tokens of an answer")
        answer = answer_in(replied, SimulatedAnswer.__struct_fields__)
        if answer is None or answer.value is None:
            wrong = "there is none" if answer is None else "it breaks off, or cannot be read"
            raise Fault("malformed", f"it is no JSON object of that form ({wrong})")
        try:
            found = msgspec.convert(answer.value, SimulatedAnswer)
        except msgspec.ValidationError as error:
            raise Fault("malformed", f"it is no JSON object of that form ({error})") from error
        if not found.observation.strip():
            raise Fault("empty", "`observation` is empty")
        if len(found.observation) > self._answers.max_chars:
            raise Fault("too_long", f"`observation` has more than {self._answers.max_chars} characters")
        if found.error and (found.changes or found.end != "no"):
            raise Fault("contradiction", "an action that is refused (`error`) neither changes nor ends anything")
        # A refusal, and the last word of an episode, are no results.
        plain = not found.error and found.end == "no"
        if plain and isinstance(action, ApiAction) and action.function in self._answers.results:
            self._check_result(action.function, found.observation)
        return found

    def _check_result(self, function: str, text: str) -> None:
        """Raises ``Fault`` for a result that is no JSON, or none that fits the schema."""
        try:
            value: Any = msgspec.json.decode(text)
        except msgspec.MsgspecError as error:
            raise Fault("no_json", f"what {function} answers must be JSON ({error})") from error
        wrong = misfit_value(value, self._answers.results[function])
        if wrong is not None:
            raise Fault("other_schema", f"what {function} answers does not fit its schema: {wrong}")


class Follower:
    """The real environment behind a simulated one. It carries out the actions only when it is asked about them."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.waiting: list[AnyAction] = []
        """Actions that were put to the simulator, and are not carried out yet."""
        self._answer = SimulatedAnswer(observation="", error=False, changes=False, end="no")

    def followed(self) -> Environment:
        """The environment, in the state to which the actions lead."""
        while self.waiting:
            action = self.waiting.pop(0)
            with environment_at_fault():
                before = self.environment.state_digest()
            transition = carry_out(self.environment, action)
            with environment_at_fault():
                passed = self.environment.check().passed
                changes = self.environment.state_digest() != before
            ended = transition.terminated or transition.truncated
            self._answer = SimulatedAnswer(
                observation=transcript([transition.observation]),
                error=transition.error,
                changes=changes,
                end="no" if not ended else "success" if passed else "failure",
            )
        return self.environment

    def last_answer(self) -> str:
        """What it answered to the last action, as a simulator writes it."""
        self.followed()
        return _json(self._answer)


def action_text(action: AnyAction) -> str:
    """An action as the model is shown it: a call as JSON, a command, code or a message as it is.

    Half characters (lone surrogates) become ``?``, since nothing else can be sent.
    """
    if isinstance(action, ApiAction):
        arguments = json.dumps(action.kwargs, ensure_ascii=False, sort_keys=True)
        text = f'{{"name": {json.dumps(action.function, ensure_ascii=False)}, "arguments": {arguments}}}'
    else:
        text = action.content
    return text.encode(errors="replace").decode()


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
