"""Cores of worlds in which things are worked on in one room: chains of work, machines, assembly, paint, tanks, jobs."""

from __future__ import annotations

import random

from agentmill.synthesis.generators.pddl_procedural.draft import ActionDraft, Draft


def process(draft: Draft, chance: random.Random) -> None:
    """Items pass through a chain of states, with a way back or a side branch."""
    chain = draft.theme.chain
    length = chance.choice((2, 3))
    draft.kind("item", 2, 4)
    states = chain.states[: length + 1]
    for number, state in enumerate(states):
        draft.predicate(f"{state} item", f"the {{0}} is {state}", goal=float(number))
    draft.begin("each", states[0], options=list(states[:-1]))
    for verb, old, new in zip(chain.verbs, states, states[1:], strict=False):
        draft.action(verb, "item", f"{old} item", f"{new} item, not {old} item", f"{verb} {{item}}", "work item")
    draft.say(f"A <item> goes from {' to '.join(states)}.")
    extra = chance.choice(("none", "undo", "pair"))
    if extra == "undo":
        text = "reset {item}"
        draft.action("reset", "item", f"{states[-1]} item", f"{states[0]} item, not {states[-1]} item", text)
    elif extra == "pair":
        draft.predicate("paired item item", "the {0} belongs with the {1}", goal=2)
        needs = f"{states[-1]} item, {states[-1]} other, not paired item other, not = item other"
        draft.action("match", "item other:item", needs, "paired item other", "match {item} and {other}", "work")
        draft.say("Finished ones can be matched.")


def batch(draft: Draft, chance: random.Random) -> None:
    """Items are put into machines, treated and taken out."""
    chain = draft.theme.chain
    old, new = chain.states[:2]
    draft.kind("item", 2, 3)
    draft.kind("station", 1, 2)
    draft.predicate("waiting item", "the {0} is on the table", goal=1)
    draft.predicate("inside item station", "the {0} is in the {1}", goal=1)
    draft.predicate("vacant station", "the {0} is empty")
    draft.predicate(f"{old} item", f"the {{0}} is {old}")
    draft.predicate(f"{new} item", f"the {{0}} is {new}", goal=3)
    for predicate in ("waiting", "vacant", old):
        draft.begin("all", predicate)
    draft.action(
        "insert",
        "item station",
        "waiting item, vacant station",
        "inside item station, not waiting item, not vacant station",
        "insert {item} into {station}",
        "take item",
    )
    run = draft.action(
        chain.verbs[0],
        "item station",
        f"inside item station, {old} item",
        f"{new} item, not {old} item",
        f"{chain.verbs[0]} {{item}} in {{station}}",
        "work item",
    )
    draft.action(
        "remove",
        "item station",
        "inside item station",
        "waiting item, vacant station, not inside item station",
        "remove {item} from {station}",
        "put item",
    )
    draft.say("A <station> holds one <item>.")
    _upkeep(draft, run, chance.choice(("none", "suited", "clean")))


def _upkeep(draft: Draft, run: ActionDraft, extra: str) -> None:
    if extra == "suited":
        draft.predicate("suits station item", "the {0} suits the {1}")
        draft.begin("each_last", "suits")
        draft.extend(run, "suits station item")
        draft.say("Use a <station> that suits.")
    elif extra == "clean":
        draft.predicate("tidy station", "the {0} is tidy", goal=1)
        draft.begin("all", "tidy")
        draft.extend(run, "tidy station", "not tidy station")
        draft.action("tidy-up", "station", "not tidy station", "tidy station", "tidy {station}")
        draft.say("Each use makes it untidy.")


def assemble(draft: Draft, chance: random.Random) -> None:
    """Two pieces make a third by recipe; some worlds let them be taken apart again, or refine one piece with a tool."""
    draft.kind("piece", 5, 7)
    draft.predicate("own piece", "you have the {0}", goal=3)
    draft.predicate("makes piece piece piece", "the {0} and the {1} make the {2}")
    draft.begin("recipes", "makes", have="own")
    parts = "left:piece right:piece product:piece"
    made, used = "own product, not own left, not own right", "makes left right product"
    style = chance.choice(("join", "split", "table"))
    join = draft.action(
        "join", parts, f"{used}, own left, own right", made, "join {left} and {right} into {product}", "work"
    )
    draft.say("Join two <pieces> that make another.")
    if style == "split":
        draft.action(
            "split",
            parts,
            f"{used}, own product",
            "own left, own right, not own product",
            "split {product} into {left} and {right}",
            "work",
        )
    elif style == "table":
        draft.predicate("laid piece", "the {0} is on the bench", goal=1)
        draft.extend(join, "laid left, laid right", "not laid left, not laid right")
        needs, effects = "own piece, not laid piece", "laid piece"
        draft.action("lay", "piece", needs, effects, "lay {piece} on bench", "take item")
        draft.say("Both must lie on the bench.")


def paint(draft: Draft, chance: random.Random) -> None:
    """Items are coloured with a brush that holds one colour."""
    draft.kind("item", 2, 3)
    draft.kind("color", 2, 3)
    draft.predicate("plain item", "the {0} is plain")
    draft.predicate("colored item color", "the {0} is {1}", goal=3)
    draft.predicate("dipped color", "the brush is {0}")
    draft.begin("each", "plain", options=["plain", "colored"])
    brush = draft.action(
        "paint",
        "item color",
        "plain item, dipped color",
        "colored item color, not plain item",
        "paint {item} {color}",
        "work item",
    )
    if chance.random() < 0.5:
        draft.begin("one", "dipped")
        swap = "dipped old, not dipped new"
        draft.action(
            "change",
            "old:color new:color",
            swap,
            "dipped new, not dipped old",
            "change brush from {old} to {new}",
            "take",
        )
        draft.say("The brush holds one color.")
    else:
        draft.predicate("undipped", "the brush is dry")
        draft.begin("one", "undipped")
        draft.extend(brush, "", "undipped, not dipped color")
        draft.action("dip", "color", "undipped", "dipped color, not undipped", "dip brush in {color}", "take")
        draft.say("Dip the brush for every stroke.")
    if chance.random() < 0.6:
        needs, effects = "colored item color", "plain item, not colored item color"
        draft.action("strip", "item color", needs, effects, "strip {item} of {color}", "work item")


def tanks(draft: Draft, chance: random.Random) -> None:
    """Tanks are filled and drained level by level."""
    draft.kind("tank", 2, 3)
    draft.kind("level", 3, 4)
    draft.predicate("filled tank level", "{0} is {1}", goal=3)
    draft.predicate("next level level", "{0} comes before {1}")
    draft.begin("each", "filled")
    draft.begin("chain", "next")
    style = chance.choice(("plain", "valve", "shift"))
    moves = (("fill", "next low high", "low", "high"), ("drain", "next low high", "high", "low"))
    for name, order, old, new in moves if style != "shift" else moves[:1]:
        needs, effects = f"filled tank {old}, {order}", f"filled tank {new}, not filled tank {old}"
        drafted = draft.action(
            name, "tank low:level high:level", needs, effects, f"{name} {{tank}} from {{{old}}} to {{{new}}}", "work"
        )
        if style == "valve":
            draft.extend(drafted, "unlatched tank")
    if style == "valve":
        draft.predicate("unlatched tank", "the valve of {0} is open", goal=1)
        draft.begin("some", "unlatched", count=[0, 1])
        draft.action("open", "tank", "not unlatched tank", "unlatched tank", "open {tank}")
        draft.action("close", "tank", "unlatched tank", "not unlatched tank", "close {tank}")
        draft.say("A valve must be open to change a level.")
    elif style == "shift":
        draft.action(
            "let-flow",
            "tank other:tank low:level high:level",
            "filled tank high, filled other low, next low high, not = tank other",
            "filled tank low, filled other high, not filled tank high, not filled other low",
            "let {tank} at {high} flow into {other} at {low}",
            "work",
        )
    draft.say("Levels change by one step.")


def jobs(draft: Draft, chance: random.Random) -> None:
    """Jobs follow one another and are done by the agent or by workers who need rest."""
    draft.kind("job", 4, 5)
    draft.predicate("done job", "the {0} job is done", goal=3)
    draft.predicate("after job job", "the {0} job follows the {1} job")
    draft.begin("graph", "after", shapes=["in_tree"], root="done")
    needs, effects = "after job before, done before, not done job", "done job"
    crew = chance.choice(("alone", "crew", "skilled"))
    if crew == "alone":
        draft.action("perform", "job before:job", needs, effects, "do {job} after {before}", "work")
    else:
        draft.kind("worker", 1, 2)
        draft.predicate("awake worker", "{0} is awake", goal=0.5)
        draft.begin("all", "awake")
        effort = draft.action(
            "perform",
            "worker job before:job",
            f"{needs}, awake worker",
            f"{effects}, not awake worker",
            "let {worker} do {job} after {before}",
            "work",
        )
        draft.action("sleep", "worker", "not awake worker", "awake worker", "let {worker} sleep")
        draft.say("Each job tires a worker.")
        if crew == "skilled":
            draft.predicate("skilled worker job", "{0} can do the {1} job")
            draft.begin("each_last", "skilled")
            draft.extend(effort, "skilled worker job")
    draft.say("A job can be done when the one before it is.")
    if chance.random() < 0.4:
        needs = "after job before, done before, done job"
        draft.action("undo", "job before:job", needs, "not done job", "undo {job} after {before}")
