"""
ask: Distances are counted along x plus along y. How far is the nearest NOUN from $x, $y?
items: points
fields:
  - a coordinate x
  - a coordinate y
extra:
  x: chance.randint(0, 9)
  y: chance.randint(0, 9)
"""

# %% solve
def solve(items, x, y):
    return min(abs(one - x) + abs(two - y) for one, two in items)

# %% check
def check(items, x, y):
    return sorted(max(one, x) - min(one, x) + max(two, y) - min(two, y) for one, two in items)[0]
