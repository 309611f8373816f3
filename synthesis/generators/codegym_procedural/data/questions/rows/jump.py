"""
ask: By how much do two NOUNS side by side differ at most?
items: some
ordered: true
"""

# %% solve
def solve(items):
    return max(abs(two - one) for one, two in zip(items, items[1:]))

# %% check
def check(items):
    return max(abs(items[place] - items[place - 1]) for place in range(1, len(items)))
