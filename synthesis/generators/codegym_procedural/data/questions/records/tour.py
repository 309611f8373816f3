"""
ask: You visit the NOUNS in order, and go along x and along y only. How long is the way from the first to the last?
items: points
fields:
  - a coordinate x
  - a coordinate y
ordered: true
"""

# %% solve
def solve(items):
    return sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in zip(items, items[1:]))

# %% check
def check(items):
    way = 0
    for place in range(1, len(items)):
        for axis in (0, 1):
            way += abs(items[place][axis] - items[place - 1][axis])
    return way
