"""
ask: How many groups of words made of the same letters are there, when words that stand alone make a group too?
items: words
"""

# %% solve
def solve(items):
    return len({tuple(sorted(word)) for word in items})

# %% check
def check(items):
    groups = []
    for word in items:
        if not any(sorted(word) == sorted(group) for group in groups):
            groups.append(word)
    return len(groups)
