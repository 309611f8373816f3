"""
ask: How far apart are the amounts of the two NOUNS that hold most nearly the same?
items: at_most_seven
"""

# %% solve
def solve(items):
    ranked = sorted(items)
    return min(high - low for low, high in zip(ranked, ranked[1:]))

# %% check
def check(items):
    return min(abs(items[one] - items[two]) for two in range(len(items)) for one in range(two))
