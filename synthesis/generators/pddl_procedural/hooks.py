"""What features ask of a draft: which actions they can hook on, who stands where, which words are free."""

from __future__ import annotations

import random
from collections.abc import Iterable

from agentmill.synthesis.generators.pddl_procedural.draft import ActionDraft, Draft


def groups(draft: Draft, *tags: str) -> list[str]:
    """Those of ``tags`` that some action carries."""
    return [tag for tag in tags if draft.tagged(tag)]


def with_item(draft: Draft, tag: str) -> list[ActionDraft]:
    """The actions of a tag that are done to an item."""
    return [action for action in draft.tagged(tag) if action.has("item")]


def with_place(draft: Draft, tag: str) -> list[ActionDraft]:
    """The actions of a tag that are done in a place."""
    return [action for action in draft.tagged(tag) if action.has("place")]


def verbs(actions: Iterable[ActionDraft]) -> str:
    """The commands of ``actions`` by their verbs: the first word, or the one behind ``let {worker}``."""
    words = [action.text.split() for action in actions]
    return " or ".join(dict.fromkeys(said[2] if said[0] == "let" else said[0] for said in words))


def stand(draft: Draft, place: str) -> tuple[str, str, str]:
    """For an action that someone must be at ``place`` to do: a parameter, a condition and the opening of a text.

    Each is empty or ends so that more can follow. The agent does it where it moves itself, a worker where workers do;
    in a world of vehicles nobody need be there.
    """
    if "here" in draft.predicates:
        return "", f"here {place}, ", ""
    return ("worker ", f"parked worker {place}, ", "let {worker} ") if draft.mover == "worker" else ("", "", "")


def free_words(draft: Draft, pairs: Iterable[tuple[str, str]], chance: random.Random) -> tuple[str, str]:
    """One of ``pairs`` of (state, verb) that nothing else uses."""
    taken = {*draft.predicates, *draft.theme.chain.states, *draft.theme.chain.verbs, *draft.actions}
    return chance.choice([pair for pair in pairs if not taken & set(pair)])
