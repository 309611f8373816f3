"""
ask: How many NOUNS hold more than each NOUN right beside them?
items: some
ordered: true
"""

# %% solve
def solve(items):
    beside = [items[max(place - 1, 0) : place] + items[place + 1 : place + 2] for place in range(len(items))]
    return sum(item > max(others) for item, others in zip(items, beside))

# %% check
def check(items):
    walled = [-99, *items, -99]
    return sum(walled[place - 1] < walled[place] > walled[place + 1] for place in range(1, len(walled) - 1))
