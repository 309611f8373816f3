"""Two small coding problems, for the conformance checks and as examples of the format."""

from __future__ import annotations

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.codegym.problem import SUBMIT, Problem, ProblemTool, write_problem

_INTEGER = {"type": "integer"}

GAUGE = Problem(
    about="A shelf holds jars that are numbered from 0. From jar to jar the filling rises or stays the same.",
    question="Of $jars jars, how many hold at least $level grams? Add the number of lids.",
    tools=(
        ProblemTool("weigh", "Weighs a jar: grams.", {"jar": {**_INTEGER, "description": "number of the jar"}}),
        ProblemTool("count_lids", "How many lids lie beside the shelf."),
    ),
    instances="""
def draw(chance, size):
    jars = sorted(chance.randint(10, 99) for _ in range(3 * size))
    return {"jars": jars, "level": chance.choice(jars), "lids": chance.randint(1, 3)}

def given(instance):
    return {"jars": len(instance["jars"]), "level": instance["level"]}
""",
    code="""
def weigh(state, jar):
    if not 0 <= jar < len(state["jars"]):
        raise Refused(f"There is no jar {jar}.")
    return state["jars"][jar]

def count_lids(state):
    return state["lids"]
""",
    solution="""
def solve(instance):
    return sum(jar >= instance["level"] for jar in instance["jars"]) + instance["lids"]
""",
    oracle="""
def oracle(call, given):
    low, high = 0, given["jars"]
    while low < high:
        middle = (low + high) // 2
        if call("weigh", jar=middle) >= given["level"]:
            high = middle
        else:
            low = middle + 1
    return given["jars"] - low + call("count_lids")
""",
    answer=_INTEGER,
    metered=("weigh",),
)
PILES = Problem(
    about="Crates stand in a row of places that are numbered from 0. You cannot look into them, but compare two.",
    question="Bring the $crates crates into order, the lightest at place 0. Then say that it is done.",
    tools=(
        ProblemTool(
            "lighter",
            "Whether the crate at one place is lighter than that at another.",
            {"first": _INTEGER, "second": _INTEGER},
        ),
        ProblemTool("swap", "Swaps the crates of two places.", {"first": _INTEGER, "second": _INTEGER}),
    ),
    instances="""
def draw(chance, size):
    crates = chance.sample(range(10, 99), size)
    if crates == sorted(crates):
        crates.reverse()
    return {"crates": crates}

def given(instance):
    return {"crates": len(instance["crates"])}
""",
    code="""
def _check(state, *places):
    for place in places:
        if not 0 <= place < len(state["crates"]):
            raise Refused(f"There is no place {place}.")

def lighter(state, first, second):
    _check(state, first, second)
    return state["crates"][first] < state["crates"][second]

def swap(state, first, second):
    _check(state, first, second)
    crates = state["crates"]
    crates[first], crates[second] = crates[second], crates[first]
    return "swapped"

def outcome(state):
    return state["crates"]
""",
    solution="""
def solve(instance):
    return sorted(instance["crates"])
""",
    oracle="""
def oracle(call, given):
    for place in range(given["crates"]):
        least = place
        for other in range(place + 1, given["crates"]):
            if call("lighter", first=other, second=least):
                least = other
        if least != place:
            call("swap", first=place, second=least)
""",
)

GAUGE_SPEC = EnvironmentSpec(
    environment_id="codegym-gauge", family="codegym", name="gauge", source=write_problem(GAUGE)
)
PILES_SPEC = EnvironmentSpec(
    environment_id="codegym-piles", family="codegym", name="piles", source=write_problem(PILES)
)


def _calls(*calls: tuple[str, dict[str, int]]) -> list[AnyAction]:
    return [ApiAction(function=name, kwargs=dict(arguments)) for name, arguments in calls]


COUNT = Task(
    task_id="codegym-gauge-count",
    environment_id=GAUGE_SPEC.environment_id,
    instruction="Of 6 jars, how many hold at least 50 grams? Add the number of lids.",
    initial_state={
        "instance": {"jars": [12, 31, 44, 50, 50, 87], "level": 50, "lids": 2},
        "given": {"jars": 6, "level": 50},
        "budget": {"weigh": 4},
    },
    goal={"answer": 5},
    gold=_calls(
        ("weigh", {"jar": 3}),
        ("weigh", {"jar": 1}),
        ("weigh", {"jar": 2}),
        ("count_lids", {}),
        (SUBMIT, {"answer": 5}),
    ),
)
ORDER = Task(
    task_id="codegym-piles-order",
    environment_id=PILES_SPEC.environment_id,
    instruction="Bring the 3 crates into order, the lightest at place 0. Then say that it is done.",
    initial_state={"instance": {"crates": [70, 20, 40]}, "given": {"crates": 3}},
    goal={"answer": [20, 40, 70]},
    gold=_calls(
        ("lighter", {"first": 1, "second": 0}),
        ("lighter", {"first": 2, "second": 1}),
        ("swap", {"first": 0, "second": 1}),
        ("lighter", {"first": 2, "second": 1}),
        ("swap", {"first": 1, "second": 2}),
        (SUBMIT, {}),
    ),
)
EXAMPLES = [(GAUGE_SPEC, COUNT), (PILES_SPEC, ORDER)]
