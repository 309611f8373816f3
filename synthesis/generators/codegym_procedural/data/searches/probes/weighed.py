"""
tool:
  name: weigh
  description: How much a NOUN holds.
  parameters: {number: {type: integer}}
"""

# %% code
def weigh(state, number):
    _check(state, number)
    return state["items"][number]

# %% asking

def at_least(number, bound):
    return call("weigh", number=number) >= bound
def fuller(first, second):
    return call("weigh", number=first) > call("weigh", number=second)

# %% seen
def seen(call, given):
    row = [call("weigh", number=number) for number in range(given["count"])]
