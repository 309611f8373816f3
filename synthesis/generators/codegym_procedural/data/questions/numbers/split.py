"""
ask: The NOUNS are shared by two people so that what they get differs as little as possible. How much is the
  difference?
items: at_most_ten
"""

# %% solve
def solve(items):
    sums = {0}
    for item in items:
        sums |= {total + item for total in sums}
    return min(abs(sum(items) - 2 * total) for total in sums)

# %% check
def check(items):
    best = sum(items)
    for mask in range(2 ** len(items)):
        best = min(best, abs(sum(item if mask >> place & 1 else -item for place, item in enumerate(items))))
    return best
