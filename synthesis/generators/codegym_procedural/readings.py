"""Ways to see what a hidden thing holds: at a glance, field by field, in code, behind a lid, by bisection …"""

from __future__ import annotations

from agentmill.schemas.records.record import JsonObject
from agentmill.synthesis.environments.codegym.problem import ProblemTool
from agentmill.synthesis.generators.codegym_procedural.draft import INTEGER, STRING, Reading

_LOOK: tuple[str, str, dict[str, JsonObject]] = ("look", "What a NOUN holds.", {})

GLANCE = Reading(
    name="glance",
    tools_where=(_LOOK,),
    code="""
def look(state, WHERE):
    return state["items"][_place(state, PASSED)]
""",
    oracle="""
def _read(call, given, where):
    return call("look", **where)
""",
)
SEALED = Reading(
    name="sealed",
    about="A NOUN must be opened before you can look into it, and only one can be open.",
    tools_where=(("open_NOUN", "Opens a NOUN and closes the one that was open.", {}), _LOOK),
    draw='state["open"] = None',
    code="""
def open_NOUN(state, WHERE):
    state["open"] = _place(state, PASSED)
    return "it is open"
def look(state, WHERE):
    if state["open"] != _place(state, PASSED):
        raise Refused("This NOUN is closed.")
    return state["items"][state["open"]]
""",
    oracle="""
def _read(call, given, where):
    call("open_NOUN", **where)
    return call("look", **where)
""",
)
CODED = Reading(
    name="coded",
    about="On a NOUN stands a code word, and a book says what is held under which.",
    tools_where=(("code_word", "The code word on a NOUN.", {}),),
    tools=(ProblemTool("look_up", "What is held under a code word.", {"word": STRING}),),
    draw="""
known = [first + second for first in ("ba", "ko", "mi", "su", "te") for second in ("lar", "nem", "pid", "rus", "von")]
state["words"] = chance.sample(known, len(items))
""",
    code="""
def code_word(state, WHERE):
    return state["words"][_place(state, PASSED)]
def look_up(state, word):
    if word not in state["words"]:
        raise Refused(f"The book does not know {word}.")
    return state["items"][state["words"].index(word)]
""",
    oracle="""
def _read(call, given, where):
    return call("look_up", word=call("code_word", **where))
""",
)
HAND = Reading(
    name="hand",
    about="You look at a NOUN in your hands, which hold one at a time.",
    tools_where=(("take", "Takes a NOUN into your hands.", {}),),
    tools=(
        ProblemTool("inspect", "What the NOUN in your hands holds."),
        ProblemTool("put_back", "Puts the NOUN in your hands back."),
    ),
    draw='state["hand"] = None',
    code="""
def take(state, WHERE):
    if state["hand"] is not None:
        raise Refused("Your hands are full. Put back what you hold.")
    state["hand"] = _place(state, PASSED)
    return "you hold it"
def inspect(state):
    if state["hand"] is None:
        raise Refused("Your hands are empty.")
    return state["items"][state["hand"]]
def put_back(state):
    if state["hand"] is None:
        raise Refused("Your hands are empty.")
    state["hand"] = None
    return "it is back"
""",
    oracle="""
def _read(call, given, where):
    call("take", **where)
    value = call("inspect")
    call("put_back")
    return value
""",
)
NET = Reading(
    name="net",
    about="What a NOUN holds is its gross weight without its tare.",
    fits=("numbers",),
    tools_where=(("gross", "The gross weight of a NOUN.", {}), ("tare", "The tare of a NOUN.", {})),
    draw='state["tare"] = [chance.randint(1, 9) for _ in items]',
    code="""
def gross(state, WHERE):
    place = _place(state, PASSED)
    return state["items"][place] + state["tare"][place]
def tare(state, WHERE):
    return state["tare"][_place(state, PASSED)]
""",
    oracle="""
def _read(call, given, where):
    return call("gross", **where) - call("tare", **where)
""",
)
UNITS = Reading(
    name="units",
    about="What a NOUN holds is counted in units of its own: multiply the count by the size of its unit.",
    fits=("numbers",),
    tools_where=(("count_of", "The count of a NOUN.", {}), ("unit_of", "The size of the unit of a NOUN.", {})),
    draw='state["units"] = [chance.choice([unit for unit in (1, 2, 3, 5) if item % unit == 0]) for item in items]',
    code="""
def count_of(state, WHERE):
    place = _place(state, PASSED)
    return state["items"][place] // state["units"][place]
def unit_of(state, WHERE):
    return state["units"][_place(state, PASSED)]
""",
    oracle="""
def _read(call, given, where):
    return call("count_of", **where) * call("unit_of", **where)
""",
)
BISECTED = Reading(
    name="bisected",
    about="You cannot see what a NOUN holds, but ask whether it is at least some number.",
    fits=("numbers",),
    tools_where=(("holds_at_least", "Whether a NOUN holds at least a bound.", {"bound": INTEGER}),),
    draw='state["bounds"] = [min(items), max(items)]',
    given={"lowest": 'instance["bounds"][0]', "highest": 'instance["bounds"][1]'},
    told="The least that a NOUN holds is $lowest, the most $highest.",
    code="""
def holds_at_least(state, WHERE, bound):
    return state["items"][_place(state, PASSED)] >= bound
""",
    oracle="""
def _read(call, given, where):
    low, high = given["lowest"], given["highest"]
    while low < high:
        middle = (low + high + 1) // 2
        if call("holds_at_least", bound=middle, **where):
            low = middle
        else:
            high = middle - 1
    return low
""",
)
CHANGES = Reading(
    name="changes",
    about="A NOUN shows only how much more it holds than the one before it; the first shows what it holds.",
    fits=("numbers",),
    ordered=True,
    tools_where=(("shown", "What a NOUN shows.", {}),),
    code="""
def shown(state, WHERE):
    place = _place(state, PASSED)
    return state["items"][place] - (state["items"][place - 1] if place else 0)
""",
    oracle="""
def _read(call, given, where):
    return call("shown", **where)
""",
    fold="items = [sum(items[: place + 1]) for place in range(len(items))]",
)
PARTS = Reading(
    name="parts",
    fits=("records",),
    tools_where=(
        ("part", "One of the two things that a NOUN is said to have.", {"which": {"enum": ["first", "second"]}}),
    ),
    code="""
def part(state, WHERE, which):
    return state["items"][_place(state, PASSED)][["first", "second"].index(which)]
""",
    oracle="""
def _read(call, given, where):
    return [call("part", which=which, **where) for which in ("first", "second")]
""",
)
READINGS = (GLANCE, SEALED, CODED, HAND, NET, UNITS, CHANGES, BISECTED, PARTS)
