"""
ask: How many days between the first day of all and the last belong to no NOUN?
items: spread
fields:
  - a first day
  - a last day
"""

# %% solve
def solve(items):
    days = {day for start, end in items for day in range(start, end + 1)}
    return max(days) - min(days) + 1 - len(days)

# %% check
def check(items):
    free, last = 0, min(items)[1]
    for start, end in sorted(items):
        free += max(0, start - last - 1)
        last = max(last, end)
    return free
