"""
ask: Stand on the cell of the exit, and say that it is done.
tool:
  name: at_exit
  description: Whether this cell is the exit.
"""

# %% code
def at_exit(state):
    return state["at"] == state["exit"]
def outcome(state):
    return state["at"]

# %% solution
def solve(instance):
    return instance["exit"]

# %% visit
def visit():
    return call("at_exit")
