"""
ask: All accounts start at 0. What has the account $name in the end?
items: payments
fields:
  - the name of an account
  - an amount that is paid in, or out if it is below 0
extra:
  name: chance.choice(items)[0]
"""

# %% solve
def solve(items, name):
    return sum(amount for account, amount in items if account == name)

# %% check
def check(items, name):
    balance = {}
    for account, amount in items:
        balance[account] = balance.get(account, 0) + amount
    return balance[name]
