"""
about: A NOUN shows only how much more it holds than the one before it; the first shows what it holds.
fits: [numbers, rows]
ordered: true
tools_where:
  - name: shown
    description: What a NOUN shows.
"""

# %% code
def shown(state, WHERE):
    place = _place(state, PASSED)
    return state["items"][place] - (state["items"][place - 1] if place else 0)

# %% oracle
def _read(call, given, where):
    return call("shown", **where)

# %% fold
def fold(items):
    items = [sum(items[: place + 1]) for place in range(len(items))]
