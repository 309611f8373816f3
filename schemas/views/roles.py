"""A trajectory of several agents, seen by one of them: it acts, the others are heard.

Of runs of ours (``multi_agent``) it is known which prompt each agent had and what it saw; the strategy asks its
policies with what ``perceived`` gives, and views tell the run by the same function, so that a row is what the agent
saw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentmill.schemas.chat import grouped
from agentmill.schemas.dialects.tool_text import TOOL_TEXTS, calls_text
from agentmill.schemas.records.record import Integer, Record
from agentmill.schemas.records.trajectory import (
    Action,
    AnyAction,
    AnyItem,
    MessageAction,
    TextObservation,
    Trajectory,
    Usage,
)
from agentmill.schemas.views.conversation import PROPOSER, ConversationTurn, conversation
from agentmill.schemas.views.view import Unused

MULTI_AGENT = "multi_agent"
SPEAKER = "speaker"
ADDRESS = re.compile(r"\s*@([A-Za-z0-9][A-Za-z0-9_-]*)")

Sees = Literal["all", "dialogue", "own"]


class Perspective(Record):
    """The prompt of an agent of a run, what it saw, and what it cost; ``extra["roles"]`` has one by each agent's name.

    It ``sees`` ``all``; of the ``dialogue`` what is said, not what is done nor what the environment shows; or its
    ``own`` doings with what they were answered, and what is said to it or to nobody by name. ``told``: it is shown the
    instruction. Who ``reviews`` is heard only where it vetoes, as the answer to the action. What a ``person`` says is
    heard without a name before it.
    """

    system_prompt: str
    sees: Sees = "all"
    told: bool = True
    acts: bool = False
    reviews: bool = False
    person: bool = False
    policy: str | None = None
    model: str | None = None
    revision: str | None = None
    calls: Integer = 0
    usage: Usage = Usage()


def several_agents(trajectory: Trajectory) -> Unused | None:
    """Why a run of ours is none of one agent, for all that can tell or go on with such runs only."""
    if trajectory.generation is None or trajectory.generation.strategy != MULTI_AGENT:
        return None
    names = dict.fromkeys(item.agent for item in trajectory.content if isinstance(item, Action) and item.agent)
    return Unused(
        "several_agents", f"{', '.join(names)} act in it; only `role` and `linearize` of views tell such runs"
    )


def perspectives(trajectory: Trajectory) -> dict[str, Perspective]:
    """Those of the agents of a run of ours, in their order; empty for runs of one agent, and of other programs."""
    if several_agents(trajectory) is None:
        return {}
    return msgspec.convert(trajectory.extra.get("roles", {}), dict[str, Perspective])


def perceived(
    name: str, roles: Mapping[str, Perspective], content: Sequence[AnyItem]
) -> tuple[list[AnyItem], list[int]]:
    """What the agent ``name`` sees of ``content``, as it sees it, and the places of that in ``content``."""
    # Observations do not say for whom they are: they answer whoever acted in their turn.
    by_turn = {item.turn: item.agent for item in content if isinstance(item, Action)}
    places = [place for place, item in enumerate(content) if _sees(name, roles, item, by_turn.get(item.turn))]
    people = frozenset(each for each, role in roles.items() if role.person)
    items = [content[place] for place in places]
    return [heard(item, people) if isinstance(item, Action) and item.agent != name else item for item in items], places


def addressee(text: str, names: Iterable[str]) -> str | None:
    """Whom a text names that begins with ``@NAME``, if it is one of ``names``."""
    known = {name.casefold(): name for name in names}
    found = ADDRESS.match(text)
    return None if found is None else known.get(found[1].casefold())


def dialogue_of(trajectory: Trajectory, name: str) -> list[ConversationTurn]:
    """The conversation of a run of ours as its agent ``name`` had it; none of it marked for training."""
    seen, places = seen_as(trajectory, name)
    return placed(conversation(seen), places)


def placed(dialogue: Sequence[ConversationTurn], places: Sequence[int]) -> list[ConversationTurn]:
    """A conversation of the items at ``places`` of a run, with the indices that they have there."""
    return [msgspec.structs.replace(turn, items=tuple(places[item] for item in turn.items)) for turn in dialogue]


def seen_as(trajectory: Trajectory, name: str) -> tuple[Trajectory, list[int]]:
    """A run of ours with the content, system prompt and tools that its agent ``name`` had; where its items stood."""
    roles = perspectives(trajectory)
    me = roles[name]
    items, places = perceived(name, roles, trajectory.content)
    tools = trajectory.tools if me.acts else []
    return msgspec.structs.replace(trajectory, content=items, system_prompt=me.system_prompt, tools=tools), places


def is_instruction(item: AnyItem) -> bool:
    """Whether ``item`` is the instruction of the task, which ``told: false`` hides.

    What the user answers later is an answer of the environment, seen by whoever sees those: the agent acts on it.
    """
    return isinstance(item, TextObservation) and item.source == "user" and item.turn == 0


def plays(item: AnyItem, role: str) -> bool:
    """Whether ``item`` is an action of the agent, or of an agent in the role, of that name."""
    return isinstance(item, Action) and role in (item.agent, item.role)


def seen_by(role: str, content: Sequence[AnyItem]) -> list[AnyItem]:
    """``content``, item by item, with the actions of all others turned into what this one reads.

    Who speaks is written before it. Calls of others are shown as JSON; what they were answered stays an observation.
    """
    return [item if plays(item, role) or not isinstance(item, Action) else heard(item) for item in content]


def heard(action: AnyAction, people: frozenset[str] = frozenset()) -> TextObservation:
    """What others read where an agent says or does something; of ``people``, without the name before it."""
    ((message, _),) = grouped([action])
    speaker = action.agent or action.role
    text = calls_text(message, TOOL_TEXTS["json"])
    return TextObservation(
        content=f"{speaker}: {text}" if speaker and speaker not in people else text,
        source="agent",
        name=speaker,
        turn=action.turn,
        error=action.error,
        synthetic=action.synthetic,
        context_operation=action.context_operation,
    )


def _sees(name: str, roles: Mapping[str, Perspective], item: AnyItem, actor: str | None) -> bool:
    """Whether the agent ``name`` sees an item of a turn of ``actor``."""
    me = roles[name]
    if isinstance(item, Action):
        return item.agent == name or _hears(name, roles, item)
    if isinstance(item, TextObservation) and item.name == name:  # its veto, which it said itself
        return False
    if is_instruction(item):
        return me.told
    if me.sees == "own":
        return actor == name if item.turn else me.acts
    return me.sees == "all"


def _hears(name: str, roles: Mapping[str, Perspective], action: AnyAction) -> bool:
    me, speaker = roles[name], roles.get(action.agent or "")
    if speaker is None or speaker.reviews:
        return False
    if action.role != SPEAKER or not isinstance(action, MessageAction):
        return me.sees == "all"
    others = [each for each, role in roles.items() if each != action.agent and not role.reviews]
    return me.sees != "own" or addressee(action.content, others) in (None, name)


def linearized(trajectory: Trajectory, names: Sequence[str]) -> tuple[Trajectory, list[int]]:
    """A run of ours with the agents ``names`` as one, and where in the run each item of it stood.

    All other agents are heard. Reviewers that are among ``names`` speak where they vetoed; the veto is then theirs, and
    no answer of the environment. The turns of what is said until something is done are one.
    """
    roles = perspectives(trajectory)
    people = frozenset(name for name, role in roles.items() if role.person)
    items: list[AnyItem] = []
    places: list[int] = []
    for place, item in enumerate(trajectory.content):
        if not _shows(trajectory.content, place, names, roles):
            continue
        if isinstance(item, Action):
            item = _thought(item) if item.agent in names else heard(item, people)
            if isinstance(item, Action) and items and isinstance(items[-1], Action):
                item = msgspec.structs.replace(item, turn=items[-1].turn)
        items.append(item)
        places.append(place)
    return msgspec.structs.replace(trajectory, content=items), places


def _shows(content: Sequence[AnyItem], place: int, names: Sequence[str], roles: dict[str, Perspective]) -> bool:
    item = content[place]
    if isinstance(item, Action):
        speaker = roles.get(item.agent or "")
        if speaker is None or not speaker.reviews:
            return True
        return item.agent in names and place + 1 < len(content) and _vetoes(content[place + 1], item.agent)
    if is_instruction(item):
        return any(roles[name].told for name in names)
    return not any(_vetoes(item, name) for name in names)


def _vetoes(item: Any, reviewer: str | None) -> bool:
    return isinstance(item, TextObservation) and item.source == "agent" and item.name == reviewer


def _thought(action: AnyAction) -> AnyAction:
    """What an agent said, or would have done, between tags; an action that was carried out as it is."""
    if action.role not in (SPEAKER, PROPOSER):
        return action
    ((message, _),) = grouped([action])
    text = calls_text(message, TOOL_TEXTS["json"])
    return MessageAction(
        content=f"<{action.agent}>\n{text}\n</{action.agent}>",
        turn=action.turn,
        agent=action.agent,
        role=action.role,
        error=action.error,
        context_operation=action.context_operation,
    )
