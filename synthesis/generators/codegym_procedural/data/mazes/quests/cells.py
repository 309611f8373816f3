"""
ask: How many cells have a coin?
tool:
  name: is_coin
  description: Whether there is a coin on this cell.
returns: sum(found)
"""

# %% code
def is_coin(state):
    return state["at"] in state["coins"]

# %% solution
def solve(instance):
    return len(instance["coins"])

# %% visit
found = []
def visit():
    found.append(call("is_coin"))
