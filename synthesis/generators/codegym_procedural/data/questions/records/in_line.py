"""
ask: How many pairs of NOUNS have the same x or the same y, but not both?
items: points
fields:
  - a coordinate x
  - a coordinate y
"""

# %% solve
def solve(items):
    pairs = [(items[one], items[two]) for two in range(len(items)) for one in range(two)]
    return sum((one[0] == two[0]) != (one[1] == two[1]) for one, two in pairs)

# %% check
def check(items):
    pairs = 0
    for number, (x, y) in enumerate(items):
        for u, v in items[number + 1:]:
            pairs += (x == u) + (y == v) == 1
    return pairs
