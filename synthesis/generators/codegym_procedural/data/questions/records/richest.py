"""
ask: All accounts start at 0. How much is on the account that has most in the end?
items: payments
fields:
  - the name of an account
  - an amount that is paid in, or out if it is below 0
"""

# %% solve
def solve(items):
    return max(sum(amount for other, amount in items if other == account) for account, _ in items)

# %% check
def check(items):
    balance = {}
    for account, amount in items:
        balance[account] = balance.get(account, 0) + amount
    return max(balance.values())
