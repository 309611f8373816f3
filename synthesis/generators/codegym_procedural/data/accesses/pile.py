"""
about: The NOUNS lie on a pile, the first on top. What was put aside does not come back.
tools:
  - name: lift
    description: Puts aside the NOUN that you hold and lifts the next; says how many are left.
"""

# %% draw
def draw(state, items, chance):
    state["lifted"] = 0

# %% code
def _place(state):
    if not state["lifted"]:
        raise Refused("You hold no NOUN. Lift one.")
    return state["lifted"] - 1
def lift(state):
    if state["lifted"] == len(state["items"]):
        raise Refused("There are no more NOUNS.")
    state["lifted"] += 1
    return len(state["items"]) - state["lifted"]

# %% oracle
def _places(call, given):
    left = 1
    while left:
        left = call("lift")
        yield {}
