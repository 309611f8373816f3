"""
ask: At how many places can the row be cut in two so that the left part holds more than the right?
items: signed
ordered: true
"""

# %% solve
def solve(items):
    return sum(sum(items[:cut]) > sum(items[cut:]) for cut in range(1, len(items)))

# %% check
def check(items):
    left, total, cuts = 0, sum(items), 0
    for item in items[:-1]:
        left += item
        cuts += 2 * left > total
    return cuts
