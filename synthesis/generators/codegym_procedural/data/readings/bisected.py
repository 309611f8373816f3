"""
about: You cannot see what a NOUN holds, but ask whether it is at least some number.
told: The least that a NOUN holds is $lowest, the most $highest.
fits: [numbers, rows]
tools_where:
  - name: holds_at_least
    description: Whether a NOUN holds at least a bound.
    parameters: {bound: {type: integer}}
given:
  lowest: instance["bounds"][0]
  highest: instance["bounds"][1]
"""

# %% draw
def draw(state, items, chance):
    state["bounds"] = [min(items), max(items)]

# %% code
def holds_at_least(state, WHERE, bound):
    return state["items"][_place(state, PASSED)] >= bound

# %% oracle
def _read(call, given, where):
    low, high = given["lowest"], given["highest"]
    while low < high:
        middle = (low + high + 1) // 2
        if call("holds_at_least", bound=middle, **where):
            low = middle
        else:
            high = middle - 1
    return low
