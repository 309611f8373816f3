"""
ask: If you buy at what one NOUN says and sell at what a later one says, how much do you gain at most? It is 0 if
  there is nothing to gain.
items: some
ordered: true
"""

# %% solve
def solve(items):
    low, best = items[0], 0
    for item in items:
        low, best = min(low, item), max(best, item - min(low, item))
    return best

# %% check
def check(items):
    return max(0, *(items[two] - items[one] for two in range(1, len(items)) for one in range(two)))
