"""
ask: Seen from the front, how many NOUNS hold more than every NOUN before them?
items: growing
ordered: true
"""

# %% solve
def solve(items):
    return sum(all(other < item for other in items[:place]) for place, item in enumerate(items))

# %% check
def check(items):
    seen, most = 0, -99
    for item in items:
        if item > most:
            seen, most = seen + 1, item
    return seen
