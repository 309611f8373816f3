"""
ask: How many different amounts do the NOUNS hold?
items: few
"""

# %% solve
def solve(items):
    return len(set(items))

# %% check
def check(items):
    return sum(item not in items[:place] for place, item in enumerate(items))
