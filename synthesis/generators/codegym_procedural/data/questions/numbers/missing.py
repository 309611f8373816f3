"""
ask: Which is the smallest amount above 0 that no NOUN holds?
items: few
"""

# %% solve
def solve(items):
    amount = 1
    while amount in items:
        amount += 1
    return amount

# %% check
def check(items):
    return min(amount for amount in range(1, len(items) + 2) if amount not in items)
