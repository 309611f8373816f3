"""
ask: How many NOUNS hold at least $low and at most $high?
items: some
extra:
  low: min(chance.sample(items, 2))
  high: low + chance.randint(3, 12)
"""

# %% solve
def solve(items, low, high):
    return sum(low <= item <= high for item in items)

# %% check
def check(items, low, high):
    return len(items) - sum(item < low for item in items) - sum(item > high for item in items)
