"""
about: 'What a NOUN holds is counted in units of its own: multiply the count by the size of its unit.'
fits: [numbers, rows]
tools_where:
  - name: count_of
    description: The count of a NOUN.
  - name: unit_of
    description: The size of the unit of a NOUN.
"""

# %% draw
def draw(state, items, chance):
    state["units"] = [chance.choice([unit for unit in (1, 2, 3, 5) if item % unit == 0]) for item in items]

# %% code
def count_of(state, WHERE):
    place = _place(state, PASSED)
    return state["items"][place] // state["units"][place]
def unit_of(state, WHERE):
    return state["units"][_place(state, PASSED)]

# %% oracle
def _read(call, given, where):
    return call("count_of", **where) * call("unit_of", **where)
