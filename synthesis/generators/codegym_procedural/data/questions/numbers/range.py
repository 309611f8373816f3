"""
ask: How much more does the fullest NOUN hold than the emptiest?
items: some
"""

# %% solve
def solve(items):
    return max(items) - min(items)

# %% check
def check(items):
    return sorted(items)[-1] - sorted(items)[0]
