"""
ask: All accounts start at 0, and a payment that would take one below 0 is refused. How much is on all accounts
  after the NOUNS in order?
items: payments
fields:
  - the name of an account
  - an amount that is paid in, or out if it is below 0
ordered: true
"""

# %% solve
def solve(items):
    balance = {}
    for account, amount in items:
        if balance.get(account, 0) + amount >= 0:
            balance[account] = balance.get(account, 0) + amount
    return sum(balance.values())

# %% check
def check(items):
    total = 0
    for name in {account for account, _ in items}:
        left = 0
        for account, amount in items:
            left += amount if account == name and left + amount >= 0 else 0
        total += left
    return total
