"""Cores of environments: journeys, work in one room, things that are arranged, things that change hands.

Each draws by chance which of its blocks an environment has; the blocks are in ``data``.
"""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import Draft

MAPS = ("open", "paths", "floors", "doors")


def travel(draft: Draft, chance: random.Random, mover: str = "") -> None:
    """Places, and moves between them on an open map, along paths, up and down, or through doors."""
    draft.mover = mover
    draft.lay("travel.carrier" if mover else "travel.agent", MOVER=mover)
    shape = chance.choice(MAPS)
    drive = "send" if mover == "worker" else "drive"
    draft.lay(
        f"travel.{shape}",
        HERE=f"parked {mover}" if mover else "here",
        WHO=mover,
        GO=f"{drive} {{{mover}}}" if mover else "go",
        OPEN=f"let {{{mover}}} open" if mover else "open",
    )
    if shape == "floors":
        draft.lay("travel.floors_carrier" if mover else "travel.floors_agent")


def fetch(draft: Draft, chance: random.Random) -> None:
    """The agent carries items: one at a time, any number, or one in each pocket."""
    travel(draft, chance)
    draft.lay("fetch.items")
    hands = chance.choice(("one", "many", "pockets"))
    draft.lay("fetch.in_pockets" if hands == "pockets" else "fetch.in_hands")
    take, put = chance.choice((("take", "put"), ("get", "leave"), ("grab", "drop")))
    draft.lay("fetch.moves", HELD="held item pocket" if hands == "pockets" else "carried item", TAKE=take, PUT=put)
    draft.lay(f"fetch.{hands}")


def freight(draft: Draft, chance: random.Random) -> None:
    """Vehicles carry items: any number or one each; some reach only a part of the places."""
    travel(draft, chance, "vehicle")
    draft.lay("freight.load")
    limit = chance.choice(("none", "one", "grade"))
    if limit != "none":
        draft.lay(f"freight.{limit}")


def survey(draft: Draft, chance: random.Random) -> None:
    """The agent examines what can be seen in a place and reports it elsewhere."""
    travel(draft, chance)
    draft.lay("survey.reports")
    draft.lay("survey.desk" if chance.random() < 0.5 else "survey.anywhere")
    if chance.random() < 0.5:
        draft.lay("survey.notebook")


def meeting(draft: Draft, chance: random.Random) -> None:
    """Workers walk and hand items over where they meet."""
    travel(draft, chance, "worker")
    draft.lay("meeting.handover")
    if chance.random() < 0.5:
        draft.lay("meeting.one_each")


def process(draft: Draft, chance: random.Random) -> None:
    """Items pass through a chain of states, with a way back or a side branch."""
    chain = draft.theme.chain
    states = chain.states[: chance.choice((2, 3)) + 1]
    draft.lay("process.items")
    for number, state in enumerate(states):
        draft.predicate(f"{state} item", f"the {{0}} is {state}", goal=float(number))
    draft.start.append({"rule": "each", "predicate": states[0], "options": list(states[:-1])})
    for verb, old, new in zip(chain.verbs, states, states[1:], strict=False):
        draft.lay("process.step", VERB=verb, OLD=old, NEW=new)
    draft.lay("process.chain", STATES=" to ".join(states))
    extra = chance.choice(("none", "undo", "pair"))
    if extra != "none":
        draft.lay(f"process.{extra}", FIRST=states[0], LAST=states[-1])


def batch(draft: Draft, chance: random.Random) -> None:
    """Items are put into machines, treated and taken out."""
    chain = draft.theme.chain
    draft.lay("batch.machine", OLD=chain.states[0], NEW=chain.states[1], VERB=chain.verbs[0])
    upkeep = chance.choice(("none", "suited", "clean"))
    if upkeep != "none":
        draft.lay(f"batch.{upkeep}", VERB=chain.verbs[0])


def assemble(draft: Draft, chance: random.Random) -> None:
    """Two pieces make a third by recipe; some environments let them be taken apart again, or laid on a bench first."""
    draft.lay("assemble.recipes")
    style = chance.choice(("join", "split", "table"))
    if style != "join":
        draft.lay(f"assemble.{style}")


def paint(draft: Draft, chance: random.Random) -> None:
    """Items are coloured with a brush that holds one colour."""
    draft.lay("paint.brush")
    draft.lay("paint.change" if chance.random() < 0.5 else "paint.dip")
    if chance.random() < 0.6:
        draft.lay("paint.strip")


def tanks(draft: Draft, chance: random.Random) -> None:
    """Tanks are filled and drained level by level."""
    draft.lay("tanks.levels")
    style = chance.choice(("plain", "valve", "shift"))
    if style != "shift":
        draft.lay("tanks.drain")
    if style != "plain":
        draft.lay(f"tanks.{style}")
    draft.lay("tanks.steps")


def jobs(draft: Draft, chance: random.Random) -> None:
    """Jobs follow one another and are done by the agent or by workers who need rest."""
    draft.lay("jobs.order")
    crew = chance.choice(("alone", "crew", "skilled"))
    draft.lay("jobs.alone" if crew == "alone" else "jobs.crew")
    if crew == "skilled":
        draft.lay("jobs.skilled")
    draft.lay("jobs.turn")
    if chance.random() < 0.4:
        draft.lay("jobs.undo")


def stack(draft: Draft, chance: random.Random) -> None:
    """Items lie on one another: lifted by a hand, moved directly, or moved between a few spots, by size or not."""
    style = chance.choice(("hand", "direct", "spots", "sized"))
    if style in ("hand", "direct"):
        draft.lay("stack.floor")
        draft.lay(f"stack.{style}")
        return
    draft.lay("stack.spots")
    if style == "sized":
        draft.lay("stack.sized")


def store(draft: Draft, chance: random.Random) -> None:
    """Items are in containers that are opened, closed and filled."""
    draft.lay("store.boxes")
    style = chance.choice(("direct", "hand", "single"))
    draft.lay("store.direct" if style == "direct" else "store.by_hand")
    draft.lay("store.single" if style == "single" else "store.some_open")


def panel(draft: Draft, chance: random.Random) -> None:
    """Devices are switched: fed by another, excluded by another, or plugged into few sockets."""
    draft.lay("panel.devices")
    draft.lay(f"panel.{chance.choice(('feeds', 'rivals', 'plugs'))}")


def relay(draft: Draft, chance: random.Random) -> None:
    """Workers in a row pass, swap or lay down items."""
    draft.lay("relay.row")
    style = chance.choice(("pass", "single", "table", "swap"))
    if style != "pass":
        draft.lay("relay.single")
    if style in ("table", "swap"):
        draft.lay(f"relay.{style}")


def market(draft: Draft, chance: random.Random) -> None:
    """Items are swapped one for another or bought with tokens, anywhere or at places."""
    style = chance.choice(("swap", "buy", "resell"))
    where = chance.random() < 0.5
    if where:
        travel(draft, chance)
    words = {"PLACE": "place", "HERE": "here place", "AT": " <in> {place}"} if where else dict.fromkeys(_DEAL, "")
    draft.lay("market.goods")
    if style == "swap":
        draft.lay("market.wants_here" if where else "market.wants")
        draft.lay("market.swap", **words)
        return
    draft.lay("market.tokens")
    if where:
        draft.lay("market.sells_here")
    draft.lay("market.buy", **words, SOLD="here place, sells place item" if where else "")
    if style == "resell":
        draft.lay("market.resell", **words)


_DEAL = ("PLACE", "HERE", "AT")
"""Words of a deal that are empty where it is bound to no place."""
