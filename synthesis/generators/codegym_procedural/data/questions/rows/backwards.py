"""
ask: List what the NOUNS hold, from the last to the first.
items: some
ordered: true
answer: {type: array, items: {type: integer}}
"""

# %% solve
def solve(items):
    return items[::-1]

# %% check
def check(items):
    return list(reversed(items))
