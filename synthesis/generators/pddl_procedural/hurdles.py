"""Features of places and vehicles: locks, permits, closures, shutters, capacity, visits.

Each is a pair of functions: does it fit a draft, and lay it over.
"""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.hooks import stand, verbs, with_place


def fits_locks(draft: Draft) -> bool:
    """The agent carries items, and places are entered."""
    return "carried" in draft.predicates and bool(draft.tagged("move")) and "barred" not in draft.predicates


def locks(draft: Draft, chance: random.Random) -> None:
    """Some places are locked; an item opens them for good, or until they are locked again."""
    draft.predicate("barred place", "the {0} is locked")
    draft.predicate("opens item place", "the {0} unlocks the {1}")
    draft.begin("some", "barred", count=[1, 2])
    draft.begin("each_last", "opens", where="barred")
    for action in draft.tagged("move"):
        draft.extend(action, "not barred to")
    draft.action(
        "unlock",
        "place item",
        "barred place, carried item, opens item place",
        "not barred place",
        "unlock {place} with {item}",
    )
    draft.say("Locked <places> must be unlocked first.")
    if chance.random() < 0.4:
        needs = "not barred place, carried item, opens item place"
        draft.action("lock", "place item", needs, "barred place", "lock {place} with {item}")
        draft.goals["barred"] = 0.5


def fits_permits(draft: Draft) -> bool:
    """Places are entered, and nothing bars them yet."""
    return bool(draft.tagged("move")) and not {"barred", "desk"} & set(draft.predicates)


def permits(draft: Draft, chance: random.Random) -> None:
    """Some places are closed until they are asked for at a desk; a grant may serve once only."""
    draft.predicate("barred place", "the {0} is off limits")
    draft.predicate("desk place", "the {0} gives access")
    draft.begin("some", "barred", count=[1, 2])
    draft.begin("some", "desk", count=[1, 1])
    once = chance.random() < 0.4
    for action in draft.tagged("move"):
        draft.extend(action, "not barred to", "barred to" if once else "")
    who, standing, opening = stand(draft, "desk")
    draft.action(
        "request",
        f"{who}place desk:place",
        f"{standing}desk desk, barred place",
        "not barred place",
        f"{opening}request {{place}} <in> {{desk}}",
    )
    draft.say("Access is given once per visit." if once else "Access must be requested.")


def fits_closures(draft: Draft) -> bool:
    """Items are taken or put in places that are no more than places."""
    return "at" in draft.predicates and bool(with_place(draft, "take") or with_place(draft, "put"))


def closures(draft: Draft, chance: random.Random) -> None:
    """Places must be opened, or lit, before items are taken there, or put there, or both."""
    state, undo, redo = chance.choice((("shut", "unseal", "seal"), ("dark", "light", "darken")))
    draft.predicate(f"{state} place", f"the {{0}} is {state}")
    draft.begin("some", state, count=[1, 3])
    tags = chance.choice((("take",), ("put",), ("take", "put")))
    hooked = [action for tag in tags for action in with_place(draft, tag)]
    for action in hooked:
        draft.extend(action, f"not {state} place")
    who, standing, opening = stand(draft, "place")
    draft.action(undo, f"{who}place", f"{standing}{state} place", f"not {state} place", f"{opening}{undo} {{place}}")
    if chance.random() < 0.4:
        draft.action(
            redo, f"{who}place", f"{standing}not {state} place", f"{state} place", f"{opening}{redo} {{place}}"
        )
        draft.goals[state] = 0.7
    draft.say(f"A <place> must not be {state} to {verbs(hooked)} there.")


def fits_shutters(draft: Draft) -> bool:
    """Vehicles are loaded and driven."""
    return draft.mover == "vehicle"


def shutters(draft: Draft, chance: random.Random) -> None:
    """Vehicles are opened for loading and closed for driving."""
    draft.predicate("unbarred vehicle", "{0} is open", goal=0.5)
    draft.begin("some", "unbarred", count=[0, 1])
    draft.action("unbar", "vehicle", "not unbarred vehicle", "unbarred vehicle", "open {vehicle}")
    draft.action("bar", "vehicle", "unbarred vehicle", "not unbarred vehicle", "close {vehicle}")
    for action in draft.tagged(*chance.choice((("take",), ("take", "put")))):
        draft.extend(action, "unbarred vehicle")
    for action in draft.tagged("move"):
        draft.extend(action, "not unbarred vehicle")
    draft.say("Open a <vehicle> to load, close it to drive.")


def fits_capacity(draft: Draft) -> bool:
    """Items are taken from places and put into them."""
    return "at" in draft.predicates and bool(with_place(draft, "take") and with_place(draft, "put"))


def capacity(draft: Draft, _: random.Random) -> None:
    """Every place holds one item."""
    draft.predicate("vacancy place", "the {0} has room")
    for rule in draft.start:
        if rule["predicate"] == "at":
            rule["distinct"] = True
    draft.begin("unless", "vacancy", other="at")
    for action in with_place(draft, "take"):
        if action.name in ("take", "load"):
            draft.extend(action, "", "vacancy place")
    for action in with_place(draft, "put"):
        if action.name in ("put", "unload"):
            draft.extend(action, "vacancy place", "not vacancy place")
    draft.say("A <place> holds one <item>.")


def fits_visits(draft: Draft) -> bool:
    """The agent itself moves."""
    return "here" in draft.predicates


def visits(draft: Draft, chance: random.Random) -> None:
    """What was visited is remembered; some worlds allow no second visit."""
    draft.predicate("visited place", "the {0} was visited", goal=1.5)
    once = chance.random() < 0.3
    for action in draft.tagged("move"):
        draft.extend(action, "not visited to" if once else "", "visited to")
    draft.say("No <place> can be visited twice." if once else "Visits count.")
