"""Agents that talk and act in one episode: whose turn it is, what is carried out, and what is prevented.

One rule says whose turn it is. Actions keep the turn; words pass it on: to whom they name by ``@NAME``, or else back to
whoever named the speaker, or else to the next agent in the order of the roles. Reviewers are asked about each action
before it is carried out, and are in no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, TextObservation
from agentmill.schemas.views.conversation import PROPOSER
from agentmill.schemas.views.roles import SPEAKER, addressee
from agentmill.synthesis.policies.policy import PolicyError, Turn
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.episode import Episode
from agentmill.synthesis.rollouts.llm_calls import text_of
from agentmill.synthesis.rollouts.roles import Part, Role
from agentmill.synthesis.rollouts.scaffold import read
from agentmill.synthesis.rollouts.step import ACTOR


class TurnTaking:
    """An episode among several agents; ``parts`` are their policies by name."""

    def __init__(
        self, episode: Episode, roles: Sequence[Role], parts: Mapping[str, Part], max_messages: int, max_vetoes: int
    ) -> None:
        self.ended_by: str | None = None
        """Who ended it by its ``stop``."""
        self._episode = episode
        self._roles = {role.name: role for role in roles}
        self._parts = parts
        self._order = [role.name for role in roles if role.veto is None]
        self._reviewers = [role.name for role in roles if role.veto is not None]
        self._max_messages = max_messages
        self._max_vetoes = max_vetoes
        self._called_by: dict[str, str] = {}
        self._speaker = self._order[0]
        self._actions = self._held = self._messages = self._vetoes = 0

    async def play(self) -> str | None:
        """Take turns to the end. Returns what cut the episode short, or ``None`` if nothing did."""
        while self._actions < self._episode.plan.max_turns:
            if self._messages == self._max_messages:
                return "max_messages"
            turn = await self._ask(self._speaker)
            if isinstance(turn, str):
                return turn
            limit = None
            if self._roles[self._speaker].acts:
                turn = read(self._episode.plan.scaffold, turn, self._episode.frame.tools)
            if self._is_speech(turn):
                self._speak(turn)
            else:
                limit = await self._act(turn)
            if limit is not None or self._episode.terminated:
                return limit
        return "max_turns"

    async def _ask(self, name: str) -> Turn | str:
        """The turn of an agent, or what cuts the episode short.

        Raises ``PolicyError``, also (``unexpected_call``) where one who only speaks makes a call.
        """
        drawn = await self._episode.hear([self._episode.turn_seed()], self._parts[name])
        if isinstance(drawn, str):
            return drawn
        if not self._roles[name].acts and any(
            isinstance(action, ApiAction | CodeAction) for action in drawn[0].actions
        ):
            raise PolicyError(
                "unexpected_call", f"{name!r} only speaks, and its policy made a call that nobody can answer"
            )
        return drawn[0]

    def _is_speech(self, turn: Turn) -> bool:
        """Whether a turn of the speaker is said to others. Commands are text, too: there only an address tells."""
        if not self._roles[self._speaker].acts:
            return True
        if not self._others() or any(isinstance(action, ApiAction | CodeAction) for action in turn.actions):
            return False
        return self._episode.plan.scaffold in SCAFFOLD_FORMATS or addressee(text_of(turn), self._others()) is not None

    def _speak(self, turn: Turn) -> None:
        self._take_down(turn, SPEAKER)
        self._messages += 1
        stop = self._roles[self._speaker].stop
        if stop is not None and contains_word(turn, stop):
            self.ended_by, self._episode.terminated = self._speaker, True
        self._pass_on(addressee(text_of(turn), self._others()))

    async def _act(self, turn: Turn) -> str | None:
        """Carry out a turn of the speaker unless it is vetoed. Returns what cuts the episode short."""
        place = len(self._episode.content)
        proposed = self._take_down(turn, PROPOSER)
        for name in self._reviewers if self._vetoes < self._max_vetoes else ():
            judged = await self._ask(name)
            if isinstance(judged, str):
                return judged
            self._take_down(judged, SPEAKER)
            if contains_word(judged, str(self._roles[name].veto)):
                self._refuse(place, proposed, name, text_of(judged))
                return None
        self._vetoes = 0
        self._actions += 1
        self._held += 1
        limit = self._episode.perform(self._mark(place, proposed, role=ACTOR))
        role = self._roles[self._speaker]
        if self._held == role.max_actions or (role.pass_on_error and self._episode.invalid_in_a_row):
            self._pass_on(None)
        return limit

    def _refuse(self, place: int, proposed: Sequence[AnyAction], reviewer: str, words: str) -> None:
        """Let the veto be the answer to the proposal, so that every call has one."""
        self._vetoes += 1
        content = prompt("multi_agent_vetoed").replace("{words}", words)
        for action in self._mark(place, proposed, error=True):
            self._episode.content.append(
                TextObservation(
                    content=content,
                    source="agent",
                    name=reviewer,
                    turn=action.turn,
                    tool_call_id=action.tool_call_id,
                    error=True,
                )
            )

    def _take_down(self, turn: Turn, role: str) -> list[AnyAction]:
        actions = [msgspec.structs.replace(action, role=role) for action in turn.actions]
        return self._episode.add_turn(msgspec.structs.replace(turn, actions=actions))

    def _mark(self, place: int, actions: Sequence[AnyAction], **fields: object) -> list[AnyAction]:
        """The actions that stand in the episode from ``place`` on, with other values of some fields."""
        marked = [msgspec.structs.replace(action, **fields) for action in actions]
        self._episode.content[place : place + len(marked)] = marked
        return marked

    def _pass_on(self, to: str | None) -> None:
        speaker = self._speaker
        caller = self._called_by.get(speaker)
        if to is None or to == caller:  # who answers a caller by name does not call it in turn
            self._called_by.pop(speaker, None)
        else:
            self._called_by[to] = speaker
        self._speaker = to or caller or self._order[(self._order.index(speaker) + 1) % len(self._order)]
        self._held = 0

    def _others(self) -> list[str]:
        """Whom the speaker can speak to."""
        return [name for name in self._order if name != self._speaker]


def contains_word(turn: Turn, word: str) -> bool:
    """Whether a turn has ``word`` in its words, and not as a part of a longer one."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text_of(turn)) is not None
