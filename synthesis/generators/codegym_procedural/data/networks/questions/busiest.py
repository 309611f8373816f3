"""
ask: Which stop has the most ways? Of several take the first in the alphabet.
answer: {type: string}
"""

# %% solve
def solve(names, ways):
    BESIDE
    return min(names, key=lambda name: (-len(beside[name]), name))

# %% check
def check(names, ways):
    ends = [name for way in ways for name in way[:2]]
    most = max(ends.count(name) for name in names)
    return sorted(name for name in names if ends.count(name) == most)[0]
