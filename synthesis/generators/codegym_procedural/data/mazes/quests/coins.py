"""
ask: Pick up all coins of the maze, and say that it is done. A cell holds one at most.
tool:
  name: pick_up
  description: Picks up the coin of this cell; says whether there was one.
"""

# %% code
def pick_up(state):
    there = state["at"] in state["coins"]
    if there:
        state["coins"].remove(state["at"])
    return there
def outcome(state):
    return state["coins"]

# %% solution
def solve(instance):
    return []

# %% visit
def visit():
    call("pick_up")
