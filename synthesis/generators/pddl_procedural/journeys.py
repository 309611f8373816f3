"""Cores of worlds in which someone or something moves between places: fetching, freight, surveying, meeting."""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import ActionDraft, Draft

MAPS = ("open", "paths", "floors", "doors")


def travel(draft: Draft, chance: random.Random, mover: str = "") -> str:
    """Places, and moves between them on an open map, along paths, up and down, or through doors.

    Returns the predicate that says where the mover is: ``here`` of the agent, ``parked`` of a vehicle or worker.
    """
    draft.mover = mover
    here = f"parked {mover}" if mover else "here"
    draft.kind("place", 3, 4)
    if mover:
        draft.predicate(f"parked {mover} place", "{0} is <in> the {1}", goal=1)
        draft.begin("each", "parked")
    else:
        draft.predicate("here place", "you are <in> the {0}", goal=0.5)
        draft.begin("one", "here")
    _map(draft, chance.choice(MAPS), mover, here)
    return here


def _map(draft: Draft, shape: str, mover: str, here: str) -> None:
    leaves = f"{here} to, not {here} from"
    who, subject = (f"{mover} ", f"drive {{{mover}}}") if mover else ("", "go")
    subject = subject.replace("drive", "send") if mover == "worker" else subject
    if shape == "open":
        needs = f"{here} from, not {here} to"
        draft.action("move", f"{who}from:place to:place", needs, leaves, f"{subject} from {{from}} to {{to}}", "move")
    elif shape == "paths":
        draft.predicate("linked place place", "the {0} leads to the {1}")
        draft.begin("graph", "linked", shapes=["path", "star", "one_way"])
        needs = f"{here} from, linked from to"
        draft.action("move", f"{who}from:place to:place", needs, leaves, f"{subject} from {{from}} to {{to}}", "move")
        draft.say("Moves need a direct way.")
    elif shape == "floors":
        draft.predicate("below place place", "the {0} is just below the {1}")
        draft.begin("chain", "below", shuffled=True)
        for name, order in (("up", "below from to"), ("down", "below to from")):
            needs = f"{here} from, {order}"
            text = f"{subject} {name} from {{from}} to {{to}}"
            draft.action(name, f"{who}from:place to:place", needs, leaves, text, "move")
        draft.say("You move one floor at a time." if not mover else "Moves are one floor at a time.")
    else:
        _doors(draft, who, subject, here, leaves)


def _doors(draft: Draft, who: str, subject: str, here: str, leaves: str) -> None:
    draft.kind("door", 2, 3)
    draft.predicate("joins door place place", "{0} leads from the {1} to the {2}")
    draft.predicate("ajar door", "{0} is open", goal=0.5)
    draft.begin("doors", "joins")
    draft.begin("some", "ajar", count=[0, 2])
    needs = f"{here} from, joins door from to, ajar door"
    text = f"{subject} from {{from}} to {{to}} by {{door}}"
    draft.action("move", f"{who}from:place to:place door", needs, leaves, text, "move")
    opening = f"{here} place, joins door place to, not ajar door"
    text = f"{f'let {{{draft.mover}}} ' if draft.mover else ''}open {{door}} from {{place}} to {{to}}"
    draft.action("open", f"{who}door place to:place", opening, "ajar door", text)
    draft.say("Doors must be open to pass.")


def fetch(draft: Draft, chance: random.Random) -> None:
    """The agent carries items: one at a time, any number, or one in each pocket."""
    travel(draft, chance)
    draft.kind("item", 2, 3)
    draft.predicate("at item place", "the {0} is <in> the {1}", goal=3)
    draft.begin("each", "at")
    hands = chance.choice(("one", "many", "pockets"))
    held = "held item pocket" if hands == "pockets" else "carried item"
    draft.predicate(held, "the {0} is in {1}" if hands == "pockets" else "you have the {0}", goal=1)
    verb, back = chance.choice((("take", "put"), ("get", "leave"), ("grab", "drop")))
    take = draft.action(
        "take",
        "item place",
        "here place, at item place",
        f"{held}, not at item place",
        f"{verb} {{item}} <in> {{place}}",
        "take item",
    )
    put = draft.action(
        "put",
        "item place",
        f"here place, {held}",
        f"at item place, not {held}",
        f"{back} {{item}} <in> {{place}}",
        "put item",
    )
    _hands(draft, hands, take, put)


def _hands(draft: Draft, hands: str, take: ActionDraft, put: ActionDraft) -> None:
    if hands == "pockets":
        draft.kind("pocket", 2, 2)
        draft.predicate("free pocket", "{0} is free")
        draft.begin("all", "free")
        draft.extend(take, "free pocket", "not free pocket", "pocket", " into {pocket}")
        draft.extend(put, "", "free pocket", "pocket", " from {pocket}")
        draft.say("A pocket holds one <item>.")
    elif hands == "one":
        draft.predicate("emptyhanded", "your hands are free")
        draft.begin("one", "emptyhanded")
        draft.extend(take, "emptyhanded", "not emptyhanded")
        draft.extend(put, "", "emptyhanded")
        draft.say("You carry one <item> at a time.")
    else:
        draft.say("You can carry any number of <items>.")


def freight(draft: Draft, chance: random.Random) -> None:
    """Vehicles carry items: any number or one each; some reach only a part of the places."""
    travel(draft, chance, "vehicle")
    draft.kind("item", 2, 3)
    draft.kind("vehicle", 1, 2)
    draft.predicate("at item place", "the {0} is <in> the {1}", goal=3)
    draft.predicate("aboard item vehicle", "the {0} is on {1}", goal=1)
    draft.begin("each", "at")
    load = draft.action(
        "load",
        "item vehicle place",
        "parked vehicle place, at item place",
        "aboard item vehicle, not at item place",
        "load {item} onto {vehicle} <in> {place}",
        "take item",
    )
    unload = draft.action(
        "unload",
        "item vehicle place",
        "parked vehicle place, aboard item vehicle",
        "at item place, not aboard item vehicle",
        "unload {item} from {vehicle} <in> {place}",
        "put item",
    )
    draft.say("A <vehicle> carries <items>.")
    limit = chance.choice(("none", "one", "grade"))
    if limit == "one":
        draft.predicate("vacant vehicle", "{0} is empty")
        draft.begin("all", "vacant")
        draft.extend(load, "vacant vehicle", "not vacant vehicle")
        draft.extend(unload, "", "vacant vehicle")
        draft.say("Each carries one at a time.")
    elif limit == "grade":
        draft.predicate("fits item vehicle", "the {0} fits on {1}")
        draft.begin("each", "fits")
        draft.extend(load, "fits item vehicle")


def survey(draft: Draft, chance: random.Random) -> None:
    """The agent examines what can be seen in a place and reports it elsewhere."""
    travel(draft, chance)
    draft.kind("item", 2, 3)
    draft.predicate("visible item place", "the {0} can be seen <in> the {1}")
    draft.predicate("known item", "the {0} is known", goal=1)
    draft.predicate("reported item", "the {0} is reported", goal=3)
    draft.begin("each", "visible")
    look = draft.action(
        "examine",
        "item place",
        "here place, visible item place, not known item",
        "known item",
        "examine {item} <in> {place}",
        "work item",
    )
    report = draft.action(
        "report",
        "item place",
        "here place, known item, not reported item",
        "reported item",
        "report {item} <in> {place}",
        "put item",
    )
    if chance.random() < 0.5:
        draft.predicate("desk place", "the {0} takes reports")
        draft.begin("some", "desk", count=[1, 2])
        draft.extend(report, "desk place")
        draft.say("Examine a <item>, then report it at a desk.")
    else:
        draft.say("Examine a <item>, then report it.")
    if chance.random() < 0.5:
        draft.predicate("attentive", "your notebook is empty")
        draft.begin("one", "attentive")
        draft.extend(look, "attentive", "not attentive")
        draft.extend(report, "", "attentive, not known item")
        draft.say("You note one <item> at a time.")


def meeting(draft: Draft, chance: random.Random) -> None:
    """Workers walk and hand items over where they meet."""
    travel(draft, chance, "worker")
    draft.kind("worker", 2, 3)
    draft.kind("item", 2, 2)
    draft.predicate("has worker item", "{0} has the {1}", goal=3)
    draft.begin("each_last", "has", distinct=True)
    give = draft.action(
        "give",
        "item giver:worker taker:worker place",
        "parked giver place, parked taker place, has giver item, not has taker item",
        "has taker item, not has giver item",
        "give {item} from {giver} to {taker} <in> {place}",
        "put item",
    )
    draft.say("Workers hand over <items> where they meet.")
    if chance.random() < 0.5:
        draft.predicate("idle worker", "{0} has free hands")
        draft.begin("unless", "idle", other="has")
        draft.extend(give, "idle taker", "idle giver, not idle taker")
        draft.say("Each holds one.")
