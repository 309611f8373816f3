"""
tool:
  name: reaches
  description: Whether a NOUN holds at least a bound.
  parameters: {number: {type: integer}, bound: {type: integer}}
"""

# %% code
def reaches(state, number, bound):
    _check(state, number)
    return state["items"][number] >= bound

# %% asking
def at_least(number, bound):
    return call("reaches", number=number, bound=bound)
