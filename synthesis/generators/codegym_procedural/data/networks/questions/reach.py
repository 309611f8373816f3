"""
ask: How many other stops can be reached from $start, over others if need be?
extra:
  start: chance.choice(names)
"""

# %% solve
def solve(names, ways, start):
    STEPS
    return len(steps(start)) - 1

# %% check
def check(names, ways, start):
    HOPS
    return sum(far[start, name] < 999 for name in names) - 1
