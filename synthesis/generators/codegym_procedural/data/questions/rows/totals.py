"""
ask: List how much you have got after each NOUN if you empty them one after the other.
items: some
ordered: true
answer: {type: array, items: {type: integer}}
"""

# %% solve
def solve(items):
    totals = []
    for item in items:
        totals.append(item + (totals[-1] if totals else 0))
    return totals

# %% check
def check(items):
    return [sum(items[: place + 1]) for place in range(len(items))]
