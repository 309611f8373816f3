"""
ask: How many other stops are no further than $budget from $start, by the lengths of the ways?
extra:
  start: chance.choice(names)
  budget: chance.randint(5, 12)
"""

# %% solve
def solve(names, ways, start, budget):
    DIJKSTRA
    return sum(length <= budget for length in lengths(start).values()) - 1

# %% check
def check(names, ways, start, budget):
    LENGTHS
    return sum(far[start, name] <= budget for name in names if name != start)
