"""
ask: How many NOUNS hold more than $bound?
items: some
extra:
  bound: chance.choice(items) - 1
"""

# %% solve
def solve(items, bound):
    return sum(item > bound for item in items)

# %% check
def check(items, bound):
    return len([item for item in items if not item <= bound])
