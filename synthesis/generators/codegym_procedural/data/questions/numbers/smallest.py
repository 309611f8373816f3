"""
ask: How much does the emptiest of all NOUNS hold?
items: some
"""

# %% solve
def solve(items):
    return min(items)

# %% check
def check(items):
    return sorted(items)[0]
