"""
about: You stand before the first NOUN of a row.
tools:
  - name: go_on
    description: Goes to the next NOUN; says whether there was one.
"""

# %% draw
def draw(state, items, chance):
    state["at"] = 0

# %% code
def _place(state):
    return state["at"]
def go_on(state):
    more = state["at"] + 1 < len(state["items"])
    state["at"] += more
    return more

# %% oracle
def _places(call, given):
    yield {}
    while call("go_on"):
        yield {}
