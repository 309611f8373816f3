"""
ask: Of the stops that can be reached from $start, how far is the one that is farthest by lengths?
extra:
  start: chance.choice(names)
"""

# %% solve
def solve(names, ways, start):
    DIJKSTRA
    return max(lengths(start).values())

# %% check
def check(names, ways, start):
    LENGTHS
    return max(far[start, name] for name in names if far[start, name] < 999)
