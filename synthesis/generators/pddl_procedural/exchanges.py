"""Cores of worlds in which things change hands: relays and markets."""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.journeys import travel


def relay(draft: Draft, chance: random.Random) -> None:
    """Workers in a row pass, swap or lay down items."""
    draft.kind("worker", 3, 4)
    draft.kind("item", 2, 2)
    draft.predicate("has worker item", "{0} has the {1}", goal=3)
    draft.predicate("beside worker worker", "{0} stands beside {1}")
    draft.begin("each_last", "has", distinct=True)
    draft.begin("graph", "beside", shapes=["path", "ring", "star"])
    style = chance.choice(("pass", "single", "table", "swap"))
    give = draft.action(
        "give",
        "item giver:worker taker:worker",
        "beside giver taker, has giver item",
        "has taker item, not has giver item",
        "give {item} from {giver} to {taker}",
        "put item",
    )
    draft.say("Workers pass <items> to those beside them.")
    if style == "pass":
        return
    draft.predicate("idle worker", "{0} has free hands")
    draft.begin("unless", "idle", other="has")
    draft.extend(give, "idle taker", "idle giver, not idle taker")
    draft.say("Each holds one.")
    if style == "table":
        _table(draft)
    elif style == "swap":
        draft.action(
            "swap",
            "item giver:worker other:item taker:worker",
            "beside giver taker, has giver item, has taker other",
            "has taker item, has giver other, not has giver item, not has taker other",
            "swap {item} of {giver} for {other} of {taker}",
            "put",
        )


def _table(draft: Draft) -> None:
    draft.predicate("tabled item", "the {0} is on the table", goal=1)
    draft.action(
        "lay",
        "item worker",
        "has worker item",
        "tabled item, idle worker, not has worker item",
        "let {worker} lay down {item}",
        "put item",
    )
    draft.action(
        "pick",
        "item worker",
        "tabled item, idle worker",
        "has worker item, not tabled item, not idle worker",
        "let {worker} pick up {item}",
        "take item",
    )


def market(draft: Draft, chance: random.Random) -> None:
    """Items are swapped one for another or bought with tokens, anywhere or at places."""
    style = chance.choice(("swap", "buy", "resell"))
    where = chance.random() < 0.5
    if where:
        travel(draft, chance)
    draft.kind("item", 4, 5)
    draft.predicate("own item", "you have the {0}", goal=3)
    if style == "swap":
        _swaps(draft, where)
        return
    _purchases(draft, where)
    if style == "resell":
        place, here, at = _counter(where)
        draft.begin("some", "own", count=[1, 2])
        draft.action(
            "sell",
            f"item token {place}",
            f"{here}own item, not have token",
            "have token, not own item",
            f"sell {{item}} for {{token}}{at}",
            "work item",
        )


def _counter(where: bool) -> tuple[str, str, str]:
    """For a deal that is bound to a place, or is not: a parameter, a condition and the end of a text."""
    return ("place", "here place, ", " <in> {place}") if where else ("", "", "")


def _swaps(draft: Draft, where: bool) -> None:
    place, here, at = _counter(where)
    if where:
        draft.predicate("wants place item item", "the {0} swaps the {1} for the {2}")
    else:
        draft.predicate("wants item item", "the {0} buys the {1}")
    draft.begin("graph", "wants", shapes=["one_way", "out_tree"])
    draft.begin("some", "own", count=[1, 2])
    draft.action(
        "swap",
        f"item other:item {place}",
        f"{here}wants {place} item other, own item",
        "own other, not own item",
        f"swap {{item}} for {{other}}{at}",
        "work item",
    )
    draft.say("Swaps turn one <item> into another.")


def _purchases(draft: Draft, where: bool) -> None:
    place, here, at = _counter(where)
    draft.kind("token", 2, 3)
    draft.predicate("have token", "you have {0}", goal=0.2)
    draft.begin("all", "have")
    if where:
        draft.predicate("sells place item", "the {0} sells the {1}")
        draft.begin("each_last", "sells")
    draft.action(
        "buy",
        f"item token {place}",
        f"{here}{'sells place item, ' if where else ''}have token, not own item",
        "own item, not have token",
        f"buy {{item}} for {{token}}{at}",
        "work item",
    )
    draft.say("Each <item> costs one <token>.")
