"""The agents of an episode: the prompt of each, what it sees, and what it may do."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, AnyAction, AnyItem, TextObservation, Usage
from agentmill.schemas.views.conversation import PROPOSER
from agentmill.schemas.views.roles import Perspective, Sees, perceived
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, Policy, Review, Turn
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.llm_calls import all_of, text_of, total
from agentmill.synthesis.rollouts.scaffold import Frame

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
PLACES = ("goal", "initial_state")


class NotInTask(EnvError):
    """The task has nothing at the place where an agent's private information should stand."""

    reason = "not_in_task"


class Role(Config):
    """One agent. Who ``acts`` gets the description of the environment from the scaffold; all others only speak.

    The prompts that are shipped are for one who acts, a critic (``veto``), a ``person``, and otherwise a planner. In a
    prompt ``{rules}`` stands for those of the environment, ``{frame}`` for these and how to act by the scaffold,
    ``{instruction}`` for the task's, ``{knows}`` for what only this agent knows (which follows it if the prompt does
    not say where), ``{name}``, ``{others}``, ``{stop}`` and ``{veto}``.
    """

    name: Annotated[str, Field(pattern=f"^{NAME}$", description="what it is called by the others and in the rows")]
    prompt: str | None = Field(default=None, min_length=1, description="its system prompt; by default one of ours")
    acts: bool = Field(default=False, description="its actions are carried out; others are heard only")
    sees: Sees = Field(
        default="all",
        description="what it sees: everything, the dialogue only, or its own actions and the messages to it",
    )
    told: bool = Field(default=True, description="it is shown the instruction of the task")
    knows: str | None = Field(
        default=None, description="path of its private information in the task, for example goal.secrets.ann"
    )
    person: bool = Field(
        default=False, description="it plays a person: synthetic, its messages are shown without its name"
    )
    personas: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], description="who it may be, in words; one of them is drawn for each episode by its seed"
    )
    best_of: int = Field(
        default=1, ge=1, description="drafts of each of its messages, of which the same model chooses one"
    )
    stop: str | None = Field(default=None, min_length=1, description="a message of it with this text ends the episode")
    veto: str | None = Field(
        default=None,
        min_length=1,
        description="it is asked before each action, and a message with this text prevents the action",
    )
    max_actions: int | None = Field(
        default=None, ge=1, description="actions in a row, after which the turn passes on; by default it keeps it"
    )
    pass_on_error: bool = Field(default=False, description="an invalid action passes the turn on, too")

    @model_validator(mode="after")
    def _what_fits(self) -> Role:
        if self.acts and self.sees == "dialogue":
            raise ValueError("who `acts` needs `sees: all` or `own`, or it does not see what its actions did")
        if not self.acts and (self.max_actions is not None or self.pass_on_error):
            raise ValueError("`max_actions` and `pass_on_error` go with `acts: true`")
        if self.veto is not None and (self.acts or self.person or self.stop or self.sees != "all"):
            raise ValueError("who has a `veto` needs `sees: all`, and neither acts nor is a person nor has a `stop`")
        if self.best_of > 1 and (self.acts or self.veto is not None):
            raise ValueError("`best_of` is for who only speaks, neither acts nor has a `veto`")
        if self.person and self.prompt is None and self.stop is None:
            raise ValueError("a `person` needs a `stop`, the text by which it ends, for example '###STOP###'")
        if self.knows is not None and self.knows.partition(".")[0] not in PLACES:
            raise ValueError(f"`knows: {self.knows}` is no place in a task; expected goal.NAME or initial_state.NAME")
        return self

    def perspective(
        self, others: Sequence[Role], frame: Frame, rules: str, task: Task, policy: Policy, seed: int
    ) -> Perspective:
        """Its prompt in an episode of ``task`` with this ``seed``. Raises ``NotInTask``."""
        listeners = [each.name for each in others if each.veto is None]
        knows = self.knowledge(task)
        text = self.prompt or self._shipped(listeners)
        if self.knows is not None and "{knows}" not in text:
            text = f"{text}\n\n{prompt('multi_agent_knows')}"
        if self.personas and "{persona}" not in text:
            text = f"{text}\n\n{prompt('multi_agent_persona')}"
        fields = {
            "{persona}": self._persona(seed),
            "{frame}": frame.system_prompt,
            "{rules}": rules,
            "{name}": self.name,
            "{others}": ", ".join(listeners),
            "{stop}": self.stop or "",
            "{veto}": self.veto or "",
            "{instruction}": task.instruction,
            "{knows}": knows,
        }
        return Perspective(
            system_prompt=_filled(text, fields),
            sees=self.sees,
            told=self.told,
            acts=self.acts,
            reviews=self.veto is not None,
            person=self.person,
            policy=policy.name,
            model=policy.model,
            revision=policy.revision,
        )

    def knowledge(self, task: Task) -> str:
        """What only this agent knows in ``task``. Raises ``NotInTask``."""
        return "" if self.knows is None else _at(task, self.knows)

    def _persona(self, seed: int) -> str:
        chance = random.Random(derive_seed(seed, "persona", self.name))
        return chance.choice(self.personas) if self.personas else ""

    def _shipped(self, listeners: Sequence[str]) -> str:
        if self.acts:
            return prompt("multi_agent_acting") if listeners else "{frame}"
        kind = "person" if self.person else "planner" if self.veto is None else "critic"
        return prompt(f"multi_agent_{kind}")


class Part:
    """A policy in a role: it sees what this role sees, its turns bear the role's name, and what it costs is counted."""

    def __init__(self, role: Role, policy: Policy, roles: Mapping[str, Perspective]) -> None:
        self.name, self.model, self.revision = policy.name, policy.model, policy.revision
        self.sampling, self.spending = policy.sampling, policy.spending
        self.perspective = roles[role.name]
        self.undecided = 0
        """Messages for which the choice among the drafts could not be read, so that the first one was taken."""
        self._agent = role.name
        self._best_of = role.best_of
        self._policy = policy
        self._roles = roles
        self._veto = role.veto

    async def act(self, conversation: Conversation) -> Turn:
        """The policy's turn in this role."""
        me = self._roles[self._agent]
        items, _ = perceived(self._agent, self._roles, conversation.content)
        asked = msgspec.structs.replace(
            conversation,
            system_prompt=me.system_prompt,
            content=tuple(items),
            tools=conversation.tools if me.acts else [],
            choices=conversation.choices if me.acts else None,
            review=None if self._veto is None else Review(self._veto, proposed(conversation.content)),
        )
        turn = await (self._ask(asked) if self._best_of == 1 else self._best(asked))
        marked = [msgspec.structs.replace(each, agent=self._agent, synthetic=me.person) for each in turn.actions]
        return msgspec.structs.replace(turn, actions=marked)

    async def _ask(self, conversation: Conversation) -> Turn:
        """A turn of the policy, which is counted."""
        turn = await self._policy.act(conversation)
        seen = self.perspective
        self.perspective = msgspec.structs.replace(seen, calls=seen.calls + 1, usage=total(seen.usage, turn.usage))
        return turn

    async def _best(self, conversation: Conversation) -> Turn:
        """The best of several drafts, as the policy itself finds (best-of-n with self-critique, APIGen-MT)."""
        seeds = [derive_seed(conversation.seed, "draft", n) for n in range(self._best_of)]
        drafts = await all_of([self._ask(msgspec.structs.replace(conversation, seed=seed)) for seed in seeds])
        written = "\n\n".join(f"{n}. {text_of(draft)}" for n, draft in enumerate(drafts, 1))
        last = max((item.turn for item in conversation.content), default=0)
        question = prompt("multi_agent_drafts").replace("{drafts}", written)
        choosing = msgspec.structs.replace(
            conversation,
            content=(*conversation.content, TextObservation(content=question, source="user", turn=last)),
            seed=derive_seed(conversation.seed, "choice"),
            answer_schema=_choice_schema(len(drafts)),
        )
        best, spent = await self._choice(choosing)
        if not 1 <= best <= len(drafts):
            self.undecided, best = self.undecided + 1, 1
        for draft in drafts:
            spent = total(spent, draft.usage)
        return msgspec.structs.replace(drafts[best - 1], usage=spent)

    async def _choice(self, conversation: Conversation) -> tuple[int, Usage]:
        """The number of the draft that the policy finds best, 0 if none can be read, and what the choice cost."""
        try:
            judged = await self._ask(conversation)
        except ContextOverflow:
            # All drafts together may be too long where each of them fits, and each of them is paid for.
            return 0, Usage()
        found = re.search(r'"best"\s*:\s*(\d{1,9})(?!\d)', text_of(judged))
        return (int(found[1]) if found else 0), judged.usage

    async def close(self) -> None:
        """The policy is closed by who made it."""


def proposed(content: Sequence[AnyItem]) -> tuple[AnyAction, ...]:
    """The actions that are proposed last."""
    proposals = [item for item in content if isinstance(item, Action) and item.role == PROPOSER]
    return tuple(item for item in proposals if item.turn == proposals[-1].turn)


def _choice_schema(drafts: int) -> JsonObject:
    best = {"type": "integer", "minimum": 1, "maximum": drafts}
    return {
        "type": "object",
        "properties": {"critique": {"type": "string"}, "best": best},
        "required": ["critique", "best"],
        "additionalProperties": False,
    }


def _at(task: Task, place: str) -> str:
    """What stands at a dotted place of a task; what is no text as JSON."""
    first, *rest = place.split(".")
    found: Any = getattr(task, first)
    for key in rest:
        if not isinstance(found, dict) or key not in found:
            raise NotInTask(f"task {task.task_id!r} has no {place}, which an agent should know")
        found = found[key]
    return found if isinstance(found, str) else msgspec.json.encode(found, order="sorted").decode()


def _filled(text: str, fields: Mapping[str, str]) -> str:
    """``text`` with its fields; braces in what is filled in stay as they are."""
    pattern = re.compile("|".join(map(re.escape, fields)))
    return pattern.sub(lambda match: fields[match[0]], text)
