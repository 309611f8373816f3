"""
ask: Every NOUN says the price of a day. You hold at most one piece, and may buy and sell as often as you like. How
  much do you gain at most?
items: some
ordered: true
"""

# %% solve
def solve(items):
    return sum(max(two - one, 0) for one, two in zip(items, items[1:]))

# %% check
def check(items):
    cash, held = 0, -items[0]
    for item in items[1:]:
        cash, held = max(cash, held + item), max(held, cash - item)
    return cash
