"""
ask: How much do all NOUNS hold together that hold at least $bound each?
items: some
extra:
  bound: chance.choice(items)
"""

# %% solve
def solve(items, bound):
    return sum(item for item in items if item >= bound)

# %% check
def check(items, bound):
    return sum(items) - sum(item for item in items if item < bound)
