"""
ask: List the stops with exactly one way, in alphabetical order.
answer: {type: array, items: {type: string}}
"""

# %% solve
def solve(names, ways):
    BESIDE
    return sorted(name for name in names if len(beside[name]) == 1)

# %% check
def check(names, ways):
    ends = [name for way in ways for name in way[:2]]
    return [name for name in sorted(names) if ends.count(name) == 1]
