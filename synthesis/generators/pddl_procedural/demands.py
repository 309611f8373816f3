"""Features that things and efforts bring: payment, rest, power, tools, preparation, paperwork, workshops.

Each is a pair of functions: does it fit a draft, and lay it over. A feature hooks on tags (``move``, ``take``, ``put``,
``work``) and on parameters (``item``, ``place``), never on one core.
"""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.hooks import free_words, groups, stand, verbs, with_item


def fits_consumables(draft: Draft) -> bool:
    """Nothing is paid with tokens yet."""
    return "token" not in draft.kinds and bool(groups(draft, "move", "work"))


def consumables(draft: Draft, chance: random.Random) -> None:
    """Every action of a group uses up a token."""
    group = chance.choice(groups(draft, "move", "work"))
    draft.kind("token", 4, 6)
    draft.predicate("have token", "you have {0}")
    draft.begin("all", "have")
    for action in draft.tagged(group):
        draft.extend(action, "have token", "not have token", "token", " using {token}")
    draft.say(f"To {verbs(draft.tagged(group))} costs a <token>.")


def fits_rest(draft: Draft) -> bool:
    """There is an effort to rest from, and nobody rests yet."""
    return "awake" not in draft.predicates and bool(groups(draft, "move", "work"))


def rest(draft: Draft, chance: random.Random) -> None:
    """Every action of a group tires its doer, who must rest before the next."""
    group = chance.choice(groups(draft, "move", "work"))
    if group == "move" and draft.mover:
        mover = draft.mover
        draft.predicate(f"rested {mover}", "{0} is ready", goal=0.3)
        draft.begin("all", "rested")
        verb, text = (
            ("let it rest", f"let {{{mover}}} rest") if mover == "worker" else ("refuel", f"refuel {{{mover}}}")
        )
        draft.action("rest", mover, f"not rested {mover}", f"rested {mover}", text)
        draft.say(f"After a move you must {verb}.")
        extra = f"rested {mover}"
    else:
        draft.predicate("rested", "you are rested", goal=0.3)
        draft.begin("one", "rested")
        draft.action("rest", "", "not rested", "rested", "rest")
        draft.say(f"You must be rested to {verbs(draft.tagged(group))}.")
        extra = "rested"
    for action in draft.tagged(group):
        draft.extend(action, extra, f"not {extra}")


def fits_power(draft: Draft) -> bool:
    """Something can depend on power."""
    return bool(groups(draft, "move", "work", "take"))


def power(draft: Draft, chance: random.Random) -> None:
    """A main switch must be on for one group of actions and, in some worlds, off for another."""
    draft.predicate("powered", "the power is on", goal=0.5)
    draft.begin("some", "powered", count=[0, 1])
    draft.action("power-on", "", "not powered", "powered", "switch power on")
    draft.action("power-off", "", "powered", "not powered", "switch power off")
    present = groups(draft, "work", "move", "take", "put")
    powered = draft.tagged(chance.choice([group for group in present if group != "put"]))
    for action in powered:
        draft.extend(action, "powered")
    told = f"The power must be on to {verbs(powered)}"
    others = [group for group in present if not any(group in action.tags for action in powered)]
    if others and chance.random() < 0.6:
        unpowered = [action for action in draft.tagged(chance.choice(others)) if action not in powered]
        for action in unpowered:
            draft.extend(action, "not powered")
        told += f", off to {verbs(unpowered)}"
    draft.say(f"{told}.")


def fits_tools(draft: Draft) -> bool:
    """There is work, without tools so far."""
    return bool(draft.tagged("work")) and "tool" not in draft.kinds and "emptyhanded" not in draft.predicates


def tools(draft: Draft, chance: random.Random) -> None:
    """Work needs a tool in the hand, in some worlds the right one."""
    draft.kind("tool", 2, 3)
    draft.predicate("gripped tool", "you hold the {0}", goal=0.3)
    draft.predicate("barehanded", "your hand is free")
    draft.begin("one", "barehanded")
    draft.action("grip", "tool", "barehanded", "gripped tool, not barehanded", "grip {tool}")
    draft.action("release", "tool", "gripped tool", "barehanded, not gripped tool", "release {tool}")
    work = draft.tagged("work")
    suited = "item" in draft.kinds and all(action.has("item") for action in work) and chance.random() < 0.6
    if suited:
        draft.predicate("suited tool item", "the {0} is for the {1}")
        draft.begin("each_last", "suited")
    for action in work:
        draft.extend(action, "gripped tool, suited tool item" if suited else "gripped tool", "", "tool", " with {tool}")
    draft.say(f"Hold {'the right' if suited else 'a'} <tool> to {verbs(work)}.")


def fits_checks(draft: Draft) -> bool:
    """There are items to act on."""
    return any(with_item(draft, tag) for tag in ("take", "put", "work"))


def checks(draft: Draft, chance: random.Random) -> None:
    """Items must be prepared before one kind of action, once or every time."""
    words = (("checked", "check"), ("weighed", "weigh"), ("tied", "tie"), ("cooled", "cool"), ("marked", "mark"))
    state, verb = free_words(draft, words, chance)
    tag = chance.choice([t for t in ("take", "put", "work") if with_item(draft, t)])
    again = chance.random() < 0.4
    draft.predicate(f"{state} item", f"the {{0}} is {state}", goal=0.7)
    draft.begin("some", state, count=[0, 1])
    hooked = with_item(draft, tag)
    for action in hooked:
        draft.extend(action, f"{state} item", f"not {state} item" if again else "")
    if "at" in draft.predicates and "here" in draft.predicates and tag != "put":
        needs, parameters, text = (
            f"here place, at item place, not {state} item",
            "item place",
            f"{verb} {{item}} <in> {{place}}",
        )
    else:
        needs, parameters, text = f"not {state} item", "item", f"{verb} {{item}}"
    draft.action(verb, parameters, needs, f"{state} item", text)
    draft.say(f"A <item> must be {state} {'each time ' if again else ''}to {verbs(hooked)} it.")


def fits_register(draft: Draft) -> bool:
    """Items lie in places, and no desk is there yet."""
    return "at" in draft.predicates and "desk" not in draft.predicates


def register(draft: Draft, chance: random.Random) -> None:
    """Items are registered at a desk; taking them away may undo it."""
    state, verb = free_words(draft, (("stamped", "stamp"), ("counted", "count"), ("listed", "list")), chance)
    draft.predicate("desk place", "the {0} has a desk")
    draft.predicate(f"{state} item", f"the {{0}} is {state}", goal=3)
    draft.begin("some", "desk", count=[1, 1])
    who, standing, opening = stand(draft, "place")
    draft.action(
        verb,
        f"{who}item place",
        f"{standing}at item place, desk place, not {state} item",
        f"{state} item",
        f"{opening}{verb} {{item}} <in> {{place}}",
        "work item",
    )
    draft.say(f"A <item> is {state} at a desk.")
    if chance.random() < 0.4:
        for action in draft.tagged("take"):
            draft.extend(action, "", f"not {state} item")
        draft.say("Moving it undoes that.")


def fits_worksite(draft: Draft) -> bool:
    """Items lie in places and are not worked on."""
    return "at" in draft.predicates and not draft.tagged("work")


def worksite(draft: Draft, chance: random.Random) -> None:
    """Items are worked on in a workshop, where they lie or from the hand."""
    chain = draft.theme.chain
    old, new = chain.states[:2]
    draft.predicate("worksite place", "the {0} has a workshop")
    draft.predicate(f"{old} item", f"the {{0}} is {old}")
    draft.predicate(f"{new} item", f"the {{0}} is {new}", goal=3)
    draft.begin("some", "worksite", count=[1, 2])
    draft.begin("all", old)
    who, standing, opening = stand(draft, "place")
    in_hand = "carried" in draft.predicates and chance.random() < 0.5
    draft.action(
        chain.verbs[0],
        f"{who}item place",
        f"{standing}{'carried item' if in_hand else 'at item place'}, worksite place, {old} item",
        f"{new} item, not {old} item",
        f"{opening}{chain.verbs[0]} {{item}} <in> {{place}}",
        "work item",
    )
    draft.say(f"A <item> {'you carry ' if in_hand else ''}can be {new} in a workshop.")
