"""Features that are laid over an environment: payment, rest, power, tools, paperwork, workshops, locks, permits, visits
…

Each is a pair of functions: does it fit a draft, and lay it over. A feature hooks on tags (``move``, ``take``, ``put``,
``work``) and on parameters (``item``, ``place``), never on one core. What it adds is in ``data/features.yaml``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from agentmill.synthesis.generators.pddl_procedural.draft import ActionDraft, Draft


def fits_consumables(draft: Draft) -> bool:
    """Nothing is paid with tokens yet."""
    return "token" not in draft.kinds and bool(groups(draft, "move", "work"))


def consumables(draft: Draft, chance: random.Random) -> None:
    """Every action of a group uses up a token."""
    hooked = draft.tagged(chance.choice(groups(draft, "move", "work")))
    draft.lay("consumables.cost", hooked, HOOKED=verbs(hooked))


def fits_rest(draft: Draft) -> bool:
    """There is an effort to rest from, and nobody rests yet."""
    return "awake" not in draft.predicates and bool(groups(draft, "move", "work"))


def rest(draft: Draft, chance: random.Random) -> None:
    """Every action of a group tires its doer, who must rest before the next."""
    group = chance.choice(groups(draft, "move", "work"))
    hooked = draft.tagged(group)
    if group != "move" or not draft.mover:
        draft.lay("rest.agent", hooked, HOOKED=verbs(hooked))
    elif draft.mover == "worker":
        draft.lay("rest.mover", hooked, MOVER="worker", REST="let {worker} rest", MUST="let it rest")
    else:
        draft.lay("rest.mover", hooked, MOVER=draft.mover, REST=f"refuel {{{draft.mover}}}", MUST="refuel")


def fits_power(draft: Draft) -> bool:
    """Something can depend on power."""
    return bool(groups(draft, "move", "work", "take"))


def power(draft: Draft, chance: random.Random) -> None:
    """A main switch must be on for one group of actions and, in some environments, off for another."""
    draft.lay("power.switch")
    present = groups(draft, "work", "move", "take", "put")
    powered = draft.tagged(chance.choice([group for group in present if group != "put"]))
    draft.lay("power.on", powered)
    others = [group for group in present if not any(group in action.tags for action in powered)]
    if others and chance.random() < 0.6:
        # An action that needed the switch both on and off could never be done.
        unpowered = [action for action in draft.tagged(chance.choice(others)) if action not in powered]
        draft.lay("power.off", unpowered)
        draft.lay("power.both_rule", POWERED=verbs(powered), UNPOWERED=verbs(unpowered))
    else:
        draft.lay("power.rule", POWERED=verbs(powered))


def fits_tools(draft: Draft) -> bool:
    """There is work, without tools so far."""
    return bool(draft.tagged("work")) and "tool" not in draft.kinds and "emptyhanded" not in draft.predicates


def tools(draft: Draft, chance: random.Random) -> None:
    """Work needs a tool in the hand, in some environments the right one."""
    draft.lay("tools.hand")
    work = draft.tagged("work")
    suited = "item" in draft.kinds and all(action.has("item") for action in work) and chance.random() < 0.6
    draft.lay("tools.suited" if suited else "tools.any", work, HOOKED=verbs(work))


def fits_checks(draft: Draft) -> bool:
    """There are items to act on."""
    return any(with_item(draft, tag) for tag in ("take", "put", "work"))


def checks(draft: Draft, chance: random.Random) -> None:
    """Items must be prepared before one kind of action, once or every time."""
    words = (("checked", "check"), ("weighed", "weigh"), ("tied", "tie"), ("cooled", "cool"), ("marked", "mark"))
    state, verb = free_words(draft, words, chance)
    tag = chance.choice([t for t in ("take", "put", "work") if with_item(draft, t)])
    again = chance.random() < 0.4
    hooked = with_item(draft, tag)
    draft.lay("checks.state", STATE=state)
    draft.lay("checks.each_time" if again else "checks.once", hooked, STATE=state, HOOKED=verbs(hooked))
    in_place = "at" in draft.predicates and "here" in draft.predicates and tag != "put"
    draft.lay("checks.at_place" if in_place else "checks.anywhere", STATE=state, VERB=verb)


def fits_register(draft: Draft) -> bool:
    """Items are in places, and no desk is there yet."""
    return "at" in draft.predicates and "desk" not in draft.predicates


def register(draft: Draft, chance: random.Random) -> None:
    """Items are registered at a desk; taking them away may undo it."""
    state, verb = free_words(draft, (("stamped", "stamp"), ("counted", "count"), ("listed", "list")), chance)
    draft.lay("register.desk", STATE=state, VERB=verb, **doer(draft, "place", verb))
    if chance.random() < 0.4:
        draft.lay("register.undone", draft.tagged("take"), STATE=state)


def fits_worksite(draft: Draft) -> bool:
    """Items are in places and are not worked on."""
    return "at" in draft.predicates and not draft.tagged("work")


def worksite(draft: Draft, chance: random.Random) -> None:
    """Items are worked on in a workshop, where they lie or from the hand."""
    chain = draft.theme.chain
    words = {"OLD": chain.states[0], "NEW": chain.states[1], "VERB": chain.verbs[0]}
    draft.lay("worksite.workshop", **words)
    in_hand = "carried" in draft.predicates and chance.random() < 0.5
    words["WHERE"] = "carried item" if in_hand else "at item place"
    draft.lay("worksite.work", **words, **doer(draft, "place", chain.verbs[0]))
    draft.lay("worksite.in_hand" if in_hand else "worksite.lying", **words)


def fits_locks(draft: Draft) -> bool:
    """The agent carries items, and places are entered."""
    return "carried" in draft.predicates and bool(draft.tagged("move")) and "barred" not in draft.predicates


def locks(draft: Draft, chance: random.Random) -> None:
    """Some places are locked; an item opens them for good, or until they are locked again."""
    draft.lay("locks.locked", draft.tagged("move"))
    if chance.random() < 0.4:
        draft.lay("locks.again")


def fits_permits(draft: Draft) -> bool:
    """Places are entered, and nothing bars them yet."""
    return bool(draft.tagged("move")) and not {"barred", "desk"} & set(draft.predicates)


def permits(draft: Draft, chance: random.Random) -> None:
    """Some places are closed until they are asked for at a desk; a grant may serve once only."""
    once = chance.random() < 0.4
    hooked = draft.tagged("move")
    draft.lay("permits.desk", **doer(draft, "desk", "request"))
    draft.lay("permits.once" if once else "permits.for_good", hooked)


def fits_closures(draft: Draft) -> bool:
    """Items are taken or put in places that are no more than places."""
    return "at" in draft.predicates and bool(with_place(draft, "take") or with_place(draft, "put"))


def closures(draft: Draft, chance: random.Random) -> None:
    """Places must be opened, or lit, before items are taken there, or put there, or both."""
    state, undo, redo = chance.choice((("shut", "unseal", "seal"), ("dark", "light", "darken")))
    tags = chance.choice((("take",), ("put",), ("take", "put")))
    hooked = [action for tag in tags for action in with_place(draft, tag)]
    draft.lay("closures.closed", hooked, STATE=state, UNDO=undo, **doer(draft, "place", undo))
    if chance.random() < 0.4:
        draft.lay("closures.again", STATE=state, REDO=redo, **doer(draft, "place", redo))
    draft.lay("closures.rule", STATE=state, HOOKED=verbs(hooked))


def fits_shutters(draft: Draft) -> bool:
    """Vehicles are loaded and driven."""
    return draft.mover == "vehicle"


def shutters(draft: Draft, chance: random.Random) -> None:
    """Vehicles are opened for loading and closed for driving."""
    draft.lay("shutters.shutter")
    draft.lay("shutters.loading", draft.tagged(*chance.choice((("take",), ("take", "put")))))
    draft.lay("shutters.driving", draft.tagged("move"))


def fits_capacity(draft: Draft) -> bool:
    """Items are taken from places and put into them."""
    return "at" in draft.predicates and bool(with_place(draft, "take") and with_place(draft, "put"))


def capacity(draft: Draft, _: random.Random) -> None:
    """Every place holds one item."""
    for rule in draft.start:
        # With room for one item a place must not start with two.
        if rule["predicate"] == "at":
            rule["distinct"] = True
    draft.lay("capacity.room")
    draft.lay("capacity.taking", [each for each in with_place(draft, "take") if each.name in ("take", "load")])
    draft.lay("capacity.putting", [each for each in with_place(draft, "put") if each.name in ("put", "unload")])


def fits_visits(draft: Draft) -> bool:
    """The agent itself moves."""
    return "here" in draft.predicates


def visits(draft: Draft, chance: random.Random) -> None:
    """What was visited is remembered; some environments allow no second visit."""
    draft.lay("visits.visited")
    draft.lay("visits.once" if chance.random() < 0.3 else "visits.counted", draft.tagged("move"))


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
    return " or ".join(dict.fromkeys(word[2] if word[0] == "let" else word[0] for word in words))


def stand(draft: Draft, place: str) -> tuple[str, str, str]:
    """For an action that someone must be at ``place`` to do: a parameter, a condition and the opening of a text.

    Each is empty or ends so that more can follow. The agent does it where it moves itself, a worker where workers do;
    in an environment of vehicles nobody need be there.
    """
    if "here" in draft.predicates:
        return "", f"here {place}, ", ""
    return ("worker ", f"parked worker {place}, ", "let {worker} ") if draft.mover == "worker" else ("", "", "")


def doer(draft: Draft, place: str, verb: str) -> dict[str, str]:
    """``stand`` as words for a block: ``WHO``, ``STANDING`` and ``DO``, the opening with a verb."""
    who, position, opening = stand(draft, place)
    return {"WHO": who.strip(), "STANDING": position.removesuffix(", "), "DO": f"{opening}{verb}"}


def free_words(draft: Draft, pairs: Iterable[tuple[str, str]], chance: random.Random) -> tuple[str, str]:
    """One of ``pairs`` of (state, verb) that nothing else uses."""
    taken = {*draft.predicates, *draft.theme.chain.states, *draft.theme.chain.verbs, *draft.actions}
    return chance.choice([pair for pair in pairs if not taken & set(pair)])
