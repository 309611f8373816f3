"""
ask: How much do all NOUNS hold together?
items: some
"""

# %% solve
def solve(items):
    return sum(items)

# %% check
def check(items):
    return sum(sorted(items))
