"""Ways to get at hidden things one by one: by number, by name, along a chain, around a ring, off a pile …"""

from __future__ import annotations

from agentmill.synthesis.environments.codegym.problem import ProblemTool
from agentmill.synthesis.generators.codegym_procedural.draft import INTEGER, STRING, Access

_NAMES = """
state["names"] = [f"{letter}{number}" for letter, number in
    zip(chance.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=len(items)), chance.sample(range(10, 100), len(items)))]
"""
_BY_NAME = """
def _place(state, name):
    if name not in state["names"]:
        raise Refused(f"There is no NOUN {name}.")
    return state["names"].index(name)
"""
_NAME = {"name": {**STRING, "description": "name of the NOUN"}}
_NUMBER = {"number": {**INTEGER, "description": "number of the NOUN"}}

ACCESSES = (
    Access(
        name="row",
        about="The NOUNS are numbered from 0.",
        where=_NUMBER,
        given={"count": 'len(instance["items"])'},
        told="There are $count NOUNS.",
        code="""
def _place(state, number):
    if not 0 <= number < len(state["items"]):
        raise Refused(f"There is no NOUN {number}.")
    return number
""",
        oracle="""
def _places(call, given):
    return [{"number": number} for number in range(given["count"])]
""",
    ),
    Access(
        name="list",
        about="Every NOUN has a name.",
        where=_NAME,
        ordered=False,
        tools=(ProblemTool("list_NOUNS", "The names of all NOUNS."),),
        draw=_NAMES,
        code=f"""
{_BY_NAME}
def list_NOUNS(state):
    return sorted(state["names"])
""",
        oracle="""
def _places(call, given):
    return [{"name": name} for name in call("list_NOUNS")]
""",
    ),
    Access(
        name="chain",
        about="The NOUNS stand in a row, and each has a name.",
        where=_NAME,
        tools=(
            ProblemTool("first_NOUN", "The name of the first NOUN of the row."),
            ProblemTool("NOUN_after", "The name of the NOUN behind another; null behind the last.", _NAME),
        ),
        draw=_NAMES,
        code=f"""
{_BY_NAME}
def first_NOUN(state):
    return state["names"][0]
def NOUN_after(state, name):
    return [*state["names"], None][_place(state, name) + 1]
""",
        oracle="""
def _places(call, given):
    name = call("first_NOUN")
    while name is not None:
        yield {"name": name}
        name = call("NOUN_after", name=name)
""",
    ),
    Access(
        name="both_ways",
        about="The NOUNS stand in a row from left to right, and each has a name.",
        where=_NAME,
        tools=(
            ProblemTool("left_of", "The name of the NOUN to the left of another; null at the end.", _NAME),
            ProblemTool("right_of", "The name of the NOUN to the right of another; null at the end.", _NAME),
        ),
        draw=_NAMES + 'state["known"] = chance.choice(state["names"])',
        given={"known": 'instance["known"]'},
        told="One NOUN is called $known.",
        code=f"""
{_BY_NAME}
def left_of(state, name):
    return [None, *state["names"]][_place(state, name)]
def right_of(state, name):
    return [*state["names"], None][_place(state, name) + 1]
""",
        oracle="""
def _places(call, given):
    name = given["known"]
    while True:
        left = call("left_of", name=name)
        if left is None:
            break
        name = left
    while name is not None:
        yield {"name": name}
        name = call("right_of", name=name)
""",
    ),
    Access(
        name="grid",
        about="The NOUNS stand in rows and columns, both numbered from 0; read row by row.",
        where={"row": INTEGER, "column": INTEGER},
        draw="""
columns = state["columns"] = chance.randint(2, 3) if len(items) > 2 else 2
del items[len(items) // columns * columns :]
""",
        given={"rows": 'len(instance["items"]) // instance["columns"]', "columns": 'instance["columns"]'},
        told="There are $rows rows and $columns columns.",
        code="""
def _place(state, row, column):
    if not 0 <= column < state["columns"] or not 0 <= row < len(state["items"]) // state["columns"]:
        raise Refused(f"There is no NOUN in row {row}, column {column}.")
    return row * state["columns"] + column
""",
        oracle="""
def _places(call, given):
    return [{"row": row, "column": column} for row in range(given["rows"]) for column in range(given["columns"])]
""",
    ),
    Access(
        name="walk",
        about="You stand before the first NOUN of a row.",
        tools=(ProblemTool("go_on", "Goes to the next NOUN; says whether there was one."),),
        draw='state["at"] = 0',
        code="""
def _place(state):
    return state["at"]
def go_on(state):
    more = state["at"] + 1 < len(state["items"])
    state["at"] += more
    return more
""",
        oracle="""
def _places(call, given):
    yield {}
    while call("go_on"):
        yield {}
""",
    ),
    Access(
        name="ring",
        about="The NOUNS stand in a circle, in order from the one with a mark, where you are.",
        tools=(
            ProblemTool("step", "Steps to the next NOUN of the circle."),
            ProblemTool("is_marked", "Whether the NOUN before you has the mark."),
        ),
        draw='state["at"] = 0',
        code="""
def _place(state):
    return state["at"]
def step(state):
    state["at"] = (state["at"] + 1) % len(state["items"])
    return "you took a step"
def is_marked(state):
    return state["at"] == 0
""",
        oracle="""
def _places(call, given):
    yield {}
    call("step")
    while not call("is_marked"):
        yield {}
        call("step")
""",
    ),
    Access(
        name="pile",
        about="The NOUNS lie on a pile, the first on top. What was put aside does not come back.",
        tools=(ProblemTool("lift", "Puts aside the NOUN that you hold and lifts the next; says how many are left."),),
        draw='state["lifted"] = 0',
        code="""
def _place(state):
    if not state["lifted"]:
        raise Refused("You hold no NOUN. Lift one.")
    return state["lifted"] - 1
def lift(state):
    if state["lifted"] == len(state["items"]):
        raise Refused("There are no more NOUNS.")
    state["lifted"] += 1
    return len(state["items"]) - state["lifted"]
""",
        oracle="""
def _places(call, given):
    left = 1
    while left:
        left = call("lift")
        yield {}
""",
    ),
    Access(
        name="tree",
        about="Some NOUNS hang below others. One hangs on top.",
        where=_NAME,
        ordered=False,
        tools=(
            ProblemTool("top", "The name of the NOUN on top."),
            ProblemTool("below", "The names of the NOUNS that hang right below one.", _NAME),
        ),
        draw=_NAMES + 'state["above"] = [None, *(chance.randrange(place) for place in range(1, len(items)))]',
        code=f"""
{_BY_NAME}
def top(state):
    return state["names"][0]
def below(state, name):
    here = _place(state, name)
    return [state["names"][place] for place, above in enumerate(state["above"]) if above == here]
""",
        oracle="""
def _places(call, given):
    waiting = [call("top")]
    while waiting:
        name = waiting.pop()
        yield {"name": name}
        waiting += call("below", name=name)
""",
    ),
    Access(
        name="pages",
        about="The NOUNS are in a register of pages that are numbered from 0, in order.",
        where=_NAME,
        tools=(ProblemTool("page", "The names on a page; none after the last page.", {"number": INTEGER}),),
        draw=_NAMES + 'state["per_page"] = chance.randint(2, 4)',
        code=f"""
{_BY_NAME}
def page(state, number):
    if number < 0:
        raise Refused(f"There is no page {{number}}.")
    return state["names"][number * state["per_page"] : (number + 1) * state["per_page"]]
""",
        oracle="""
def _places(call, given):
    number = 0
    while names := call("page", number=number):
        yield from ({"name": name} for name in names)
        number += 1
""",
    ),
    Access(
        name="rooms",
        about="The NOUNS are spread over rooms, and each has a name.",
        where=_NAME,
        ordered=False,
        tools=(
            ProblemTool("rooms", "The names of the rooms."),
            ProblemTool("inside", "The names of the NOUNS in a room.", {"room": STRING}),
        ),
        draw=_NAMES + 'state["rooms"] = [chance.choice(["east", "west", "north"]) for _ in items]',
        code=f"""
{_BY_NAME}
def rooms(state):
    return ["east", "north", "west"]
def inside(state, room):
    if room not in rooms(state):
        raise Refused(f"There is no room {{room}}.")
    return sorted(name for name, other in zip(state["names"], state["rooms"]) if other == room)
""",
        oracle="""
def _places(call, given):
    for room in call("rooms"):
        yield from ({"name": name} for name in call("inside", room=room))
""",
    ),
    Access(
        name="gaps",
        about="The NOUNS have numbers above 0 in rising order, but not every number is in use.",
        where=_NUMBER,
        tools=(ProblemTool("next_number", "The lowest number in use above another; null if there is none.", _NUMBER),),
        draw='state["numbers"] = sorted(chance.sample(range(1, 100), len(items)))',
        code="""
def _place(state, number):
    if number not in state["numbers"]:
        raise Refused(f"There is no NOUN {number}.")
    return state["numbers"].index(number)
def next_number(state, number):
    return min((other for other in state["numbers"] if other > number), default=None)
""",
        oracle="""
def _places(call, given):
    number = 0
    while (number := call("next_number", number=number)) is not None:
        yield {"number": number}
""",
    ),
)
