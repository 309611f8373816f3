"""Cores of worlds in which things are arranged: stacks, containers, switchboards."""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import Draft


def stack(draft: Draft, chance: random.Random) -> None:
    """Items lie on one another: lifted by a hand, moved directly, or moved between a few spots, by size or not."""
    style = chance.choice(("hand", "direct", "spots", "sized"))
    if style in ("spots", "sized"):
        _spots(draft, sized=style == "sized")
        return
    draft.kind("item", 3, 4)
    draft.predicate("on item item", "the {0} is on the {1}", goal=3)
    draft.predicate("grounded item", "the {0} is on the floor", goal=1)
    draft.predicate("clear item", "the {0} is clear")
    draft.begin("towers", "on", base="grounded", clear="clear")
    if style == "hand":
        _hand(draft)
        return
    draft.action(
        "shift",
        "item from:item to:item",
        "clear item, on item from, clear to, not = item to",
        "on item to, clear from, not on item from, not clear to",
        "move {item} from {from} to {to}",
        "put item",
    )
    draft.action(
        "lower",
        "item from:item",
        "clear item, on item from",
        "grounded item, clear from, not on item from",
        "lower {item} from {from}",
        "put item",
    )
    draft.action(
        "raise",
        "item to:item",
        "clear item, grounded item, clear to, not = item to",
        "on item to, not grounded item, not clear to",
        "raise {item} onto {to}",
        "put item",
    )
    draft.say("Only clear <items> move, onto clear <items> or the floor.")


def _hand(draft: Draft) -> None:
    draft.predicate("held item", "you hold the {0}", goal=0.5)
    draft.predicate("emptyhanded", "your hand is empty")
    draft.begin("one", "emptyhanded")
    grip, loose = "held item, not clear item, not emptyhanded", "clear item, emptyhanded, not held item"
    draft.action(
        "lift",
        "item",
        "clear item, grounded item, emptyhanded",
        f"{grip}, not grounded item",
        "lift {item}",
        "take item",
    )
    draft.action("lower", "item", "held item", f"grounded item, {loose}", "lower {item}", "put item")
    draft.action(
        "unstack",
        "item under:item",
        "clear item, on item under, emptyhanded",
        f"{grip}, clear under, not on item under",
        "take {item} off {under}",
        "take item",
    )
    draft.action(
        "stack",
        "item under:item",
        "held item, clear under",
        f"on item under, {loose}, not clear under",
        "stack {item} on {under}",
        "put item",
    )
    draft.say("You hold one <item>; only clear <items> move.")


def _spots(draft: Draft, sized: bool) -> None:
    draft.kind("support", 0, 0)
    draft.kind("item", 2, 3, parent="support")
    draft.kind("place", 3, 3, parent="support")
    draft.predicate("on item support", "the {0} is on the {1}", goal=3)
    draft.predicate("clear support", "the {0} is clear")
    draft.begin("towers", "on", clear="clear")
    move = draft.action(
        "shift",
        "item from:support to:support",
        "clear item, on item from, clear to, not = item to",
        "on item to, clear from, not on item from, not clear to",
        "move {item} from {from} to {to}",
        "put item",
    )
    draft.say("Only clear <items> move, onto clear ones.")
    if sized:
        draft.predicate("smaller item support", "the {0} goes onto the {1}")
        draft.begin("sizes", "smaller")
        draft.extend(move, "smaller item to")


def store(draft: Draft, chance: random.Random) -> None:
    """Items lie in containers that are opened, closed and filled."""
    draft.kind("item", 2, 3)
    draft.kind("box", 2, 3)
    draft.predicate("in item box", "the {0} is in {1}", goal=3)
    draft.predicate("opened box", "{0} is open", goal=1)
    draft.begin("each", "in")
    style = chance.choice(("direct", "hand", "single"))
    unlock = draft.action("open", "box", "not opened box", "opened box", "open {box}")
    close = draft.action("close", "box", "opened box", "not opened box", "close {box}")
    if style == "direct":
        draft.begin("some", "opened", count=[0, 1])
        draft.action(
            "shift",
            "item from:box to:box",
            "in item from, opened from, opened to, not in item to",
            "in item to, not in item from",
            "move {item} from {from} to {to}",
            "put item",
        )
        draft.say("Both <boxes> must be open.")
        return
    _by_hand(draft)
    if style == "single":
        draft.predicate("shut", "all are closed")
        draft.begin("one", "shut")
        draft.extend(unlock, "shut", "not shut")
        draft.extend(close, "", "shut")
        draft.say("One may be open at a time.")
    else:
        draft.begin("some", "opened", count=[0, 1])


def _by_hand(draft: Draft) -> None:
    draft.predicate("held item", "you hold the {0}", goal=1)
    draft.predicate("emptyhanded", "your hands are free")
    draft.begin("one", "emptyhanded")
    draft.action(
        "take",
        "item box",
        "in item box, opened box, emptyhanded",
        "held item, not in item box, not emptyhanded",
        "take {item} from {box}",
        "take item",
    )
    draft.action(
        "put",
        "item box",
        "held item, opened box",
        "in item box, emptyhanded, not held item",
        "put {item} into {box}",
        "put item",
    )
    draft.say("You hold one <item>; a <box> must be open.")


def panel(draft: Draft, chance: random.Random) -> None:
    """Devices are switched: fed by another, excluded by another, or plugged into few sockets."""
    draft.kind("device", 3, 4)
    draft.predicate("running device", "the {0} is on", goal=3)
    chance.choice((_feeds, _rivals, _plugs))(draft)


def _feeds(draft: Draft) -> None:
    draft.predicate("feeds device device", "the {0} feeds the {1}")
    draft.begin("graph", "feeds", shapes=["out_tree"], root="running")
    needs = "feeds source device, running source, not running device"
    draft.action("start", "device source:device", needs, "running device", "start {device} from {source}", "work")
    draft.action(
        "stop",
        "device source:device",
        "feeds source device, running device",
        "not running device",
        "stop {device} at {source}",
        "work",
    )
    draft.say("A device starts from one that feeds it and is on.")


def _rivals(draft: Draft) -> None:
    draft.predicate("blocks device device", "the {0} blocks the {1}")
    draft.begin("graph", "blocks", shapes=["one_way"])
    draft.begin("some", "running", count=[1, 2])
    needs = "blocks rival device, not running rival, not running device"
    draft.action("start", "device rival:device", needs, "running device", "start {device} without {rival}", "work")
    draft.action("stop", "device", "running device", "not running device", "stop {device}", "work")
    draft.say("A device cannot start while the one that blocks it is on.")


def _plugs(draft: Draft) -> None:
    draft.kind("plug", 1, 2)
    draft.predicate("joined plug device", "{0} is in the {1}", goal=1)
    draft.predicate("loose plug", "{0} is loose")
    draft.predicate("used device", "the {0} is plugged")
    draft.begin("all", "loose")
    draft.action(
        "plug-in",
        "plug device",
        "loose plug, not used device",
        "joined plug device, used device, not loose plug",
        "put {plug} into {device}",
    )
    draft.action(
        "unplug",
        "plug device",
        "joined plug device",
        "loose plug, not joined plug device, not used device",
        "pull {plug} out of {device}",
    )
    needs = "used device, not running device"
    draft.action("start", "device", needs, "running device", "start {device}", "work")
    draft.action("stop", "device", "used device, running device", "not running device", "stop {device}", "work")
    draft.say("A device needs a plug to start or stop.")
