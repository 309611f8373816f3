"""
ask: How much does the NOUN hold that is in the middle if all are put in order of what they hold? Of two in the
  middle take the one that holds less.
items: some
"""

# %% solve
def solve(items):
    return sorted(items)[(len(items) - 1) // 2]

# %% check
def check(items):
    items = list(items)
    while len(items) > 2:
        items.remove(max(items))
        items.remove(min(items))
    return min(items)
