"""
ask: How much does the fullest of all NOUNS hold?
items: some
"""

# %% solve
def solve(items):
    return max(items)

# %% check
def check(items):
    return sorted(items)[-1]
