"""
ask: Over how many ways at least do you go from $start to $end? It is -1 if you cannot.
extra:
  start: chance.choice(names)
  end: chance.choice([name for name in names if name != start])
"""

# %% solve
def solve(names, ways, start, end):
    STEPS
    return steps(start).get(end, -1)

# %% check
def check(names, ways, start, end):
    HOPS
    return far[start, end] if far[start, end] < 999 else -1
