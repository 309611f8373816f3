"""
ask: How many different amounts above 0 can be had by taking some of the NOUNS whole?
items: up_to_12
"""

# %% solve
def solve(items):
    sums = {0}
    for item in items:
        sums |= {total + item for total in sums}
    return len(sums) - 1

# %% check
def check(items):
    return len({sum(item for place, item in enumerate(items) if mask >> place & 1) for mask in range(1, 2 ** len(items))})
