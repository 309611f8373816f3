"""
ask: How many NOUNS have the same day at most?
items: spans
fields:
  - a first day
  - a last day
"""

# %% solve
def solve(items):
    return max(sum(start <= day <= end for start, end in items) for day in range(40))

# %% check
def check(items):
    return max(sum(start <= other[0] <= end for start, end in items) for other in items)
