"""
ask: All accounts start at 0, and a payment that would take one below 0 is refused. How many of the NOUNS, in order,
  are refused?
items: payments
fields:
  - the name of an account
  - an amount that is paid in, or out if it is below 0
ordered: true
"""

# %% solve
def solve(items):
    balance, refused = {}, 0
    for account, amount in items:
        after = balance.get(account, 0) + amount
        if after < 0:
            refused += 1
        else:
            balance[account] = after
    return refused

# %% check
def check(items):
    refused = 0
    for name in {account for account, _ in items}:
        left = 0
        for account, amount in items:
            if account == name:
                refused += left + amount < 0
                left += amount if left + amount >= 0 else 0
    return refused
