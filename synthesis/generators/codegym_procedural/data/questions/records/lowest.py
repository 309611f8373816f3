"""
ask: One till starts with 20 and takes part in every payment. How much is in it when it holds least, the start
  counted?
items: payments
fields:
  - the name of an account
  - an amount that is paid in, or out if it is below 0
ordered: true
"""

# %% solve
def solve(items):
    total = least = 20
    for _, amount in items:
        total += amount
        least = min(least, total)
    return least

# %% check
def check(items):
    return min(20 + sum(amount for _, amount in items[:end]) for end in range(len(items) + 1))
