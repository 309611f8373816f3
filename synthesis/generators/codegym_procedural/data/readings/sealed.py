"""
about: A NOUN must be opened before you can look into it, and only one can be open.
tools_where:
  - name: open_NOUN
    description: Opens a NOUN and closes the one that was open.
  - name: look
    description: What a NOUN holds.
"""

# %% draw
def draw(state, items, chance):
    state["open"] = None

# %% code
def open_NOUN(state, WHERE):
    state["open"] = _place(state, PASSED)
    return "it is open"
def look(state, WHERE):
    if state["open"] != _place(state, PASSED):
        raise Refused("This NOUN is closed.")
    return state["items"][state["open"]]

# %% oracle
def _read(call, given, where):
    call("open_NOUN", **where)
    return call("look", **where)
