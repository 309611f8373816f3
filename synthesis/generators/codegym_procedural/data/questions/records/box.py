"""
ask: How large is the smallest rectangle along the axes that holds all NOUNS (width times height)?
items: points
fields:
  - a coordinate x
  - a coordinate y
"""

# %% solve
def solve(items):
    xs, ys = zip(*items)
    return (max(xs) - min(xs)) * (max(ys) - min(ys))

# %% check
def check(items):
    ranked = sorted(item[0] for item in items), sorted(item[1] for item in items)
    return (ranked[0][-1] - ranked[0][0]) * (ranked[1][-1] - ranked[1][0])
