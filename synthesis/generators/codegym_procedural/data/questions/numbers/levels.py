"""
ask: NOUNS are brought to the amount of the middle one (of two the one that holds less), taking or adding 1 at a
  time. How many times is that?
items: some
"""

# %% solve
def solve(items):
    middle = sorted(items)[(len(items) - 1) // 2]
    return sum(abs(item - middle) for item in items)

# %% check
def check(items):
    return min(sum(abs(item - goal) for item in items) for goal in items)
