"""
ask: Of how many NOUNS is there no other that weighs less and is worth more?
items: goods
fields:
  - a weight
  - a value
"""

# %% solve
def solve(items):
    return sum(not any(other[0] < weight and other[1] > value for other in items) for weight, value in items)

# %% check
def check(items):
    kept = 0
    for item in items:
        better = [1 for other in items if item[0] > other[0] and item[1] < other[1]]
        kept += not better
    return kept
