"""
tools_where:
  - name: look
    description: What a NOUN holds.
"""

# %% code
def look(state, WHERE):
    return state["items"][_place(state, PASSED)]

# %% oracle
def _read(call, given, where):
    return call("look", **where)
