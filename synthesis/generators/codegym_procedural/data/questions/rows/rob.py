"""
ask: You take some NOUNS, but never two side by side. How much do you get at most?
items: at_most_ten
ordered: true
"""

# %% solve
def solve(items):
    one = two = 0
    for item in items:
        one, two = two, max(two, one + item)
    return two

# %% check
def check(items):
    best = 0
    for mask in range(2 ** len(items)):
        if not mask & mask >> 1:
            best = max(best, sum(item for place, item in enumerate(items) if mask >> place & 1))
    return best
