"""
about: >-
  The NOUNS are in a circle, in order from the one with a mark, where you are. They count as a row from it on, so the
  last and the first are not side by side.
tools:
  - name: step
    description: Steps to the next NOUN of the circle.
  - name: is_marked
    description: Whether the NOUN before you has the mark.
"""

# %% draw
def draw(state, items, chance):
    state["at"] = 0

# %% code
def _place(state):
    return state["at"]
def step(state):
    state["at"] = (state["at"] + 1) % len(state["items"])
    return "you took a step"
def is_marked(state):
    return state["at"] == 0

# %% oracle
def _places(call, given):
    yield {}
    call("step")
    while not call("is_marked"):
        yield {}
        call("step")
