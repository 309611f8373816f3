"""
ask: How many days belong to at least one NOUN?
items: spans
fields:
  - a first day
  - a last day
"""

# %% solve
def solve(items):
    return len({day for start, end in items for day in range(start, end + 1)})

# %% check
def check(items):
    total = last = 0
    for start, end in sorted(items):
        total += max(0, end - max(start - 1, last))
        last = max(last, end)
    return total
