"""
ask: How many pairs of NOUNS are there of which the earlier one holds more?
items: some
ordered: true
"""

# %% solve
def solve(items):
    return sum(items[one] > items[two] for two in range(len(items)) for one in range(two))

# %% check
def check(items):
    items, swaps = list(items), 0
    for _ in range(len(items)):
        for place in range(1, len(items)):
            if items[place - 1] > items[place]:
                items[place - 1], items[place] = items[place], items[place - 1]
                swaps += 1
    return swaps
