"""
fits: [records]
tools_where:
  - name: part
    description: One of the two things that a NOUN is said to have.
    parameters: {which: {enum: [first, second]}}
"""

# %% code
def part(state, WHERE, which):
    return state["items"][_place(state, PASSED)][["first", "second"].index(which)]

# %% oracle
def _read(call, given, where):
    return [call("part", which=which, **where) for which in ("first", "second")]
