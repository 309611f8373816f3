"""
ask: List what the NOUNS hold in their order, leaving out what came before already.
items: few
ordered: true
answer: {type: array, items: {type: integer}}
"""

# %% solve
def solve(items):
    return list(dict.fromkeys(items))

# %% check
def check(items):
    return [item for place, item in enumerate(items) if item not in items[:place]]
