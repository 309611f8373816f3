"""
ask: How much does the NOUN hold that is second if the fullest comes first?
items: some
"""

# %% solve
def solve(items):
    return sorted(items)[-2]

# %% check
def check(items):
    items = list(items)
    items.remove(max(items))
    return max(items)
