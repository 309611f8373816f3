"""
tool:
  name: fuller
  description: Whether a NOUN holds more than another.
  parameters: {first: {type: integer}, second: {type: integer}}
"""

# %% code
def fuller(state, first, second):
    _check(state, first, second)
    return state["items"][first] > state["items"][second]

# %% asking
def fuller(first, second):
    return call("fuller", first=first, second=second)

# %% seen
def seen(call, given):
    row = [0] * given["count"]
    for second in range(given["count"]):
        for first in range(second):
            row[first if call("fuller", first=first, second=second) else second] += 1
