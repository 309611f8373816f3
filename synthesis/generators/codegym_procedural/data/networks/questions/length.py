"""
ask: How long is the shortest way from $start to $end, over other stops if need be? It is -1 if there is none.
extra:
  start: chance.choice(names)
  end: chance.choice([name for name in names if name != start])
"""

# %% solve
def solve(names, ways, start, end):
    DIJKSTRA
    return lengths(start).get(end, -1)

# %% check
def check(names, ways, start, end):
    LENGTHS
    return far[start, end] if far[start, end] < 999 else -1
