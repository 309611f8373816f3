"""
about: You look at a NOUN in your hands, which hold one at a time.
tools_where:
  - name: take
    description: Takes a NOUN into your hands.
tools:
  - name: inspect
    description: What the NOUN in your hands holds.
  - name: put_back
    description: Puts the NOUN in your hands back.
"""

# %% draw
def draw(state, items, chance):
    state["hand"] = None

# %% code
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

# %% oracle
def _read(call, given, where):
    call("take", **where)
    value = call("inspect")
    call("put_back")
    return value
