"""
ask: You empty the NOUNS one after the other. After how many have you got $target or more?
items: some
ordered: true
extra:
  target: chance.randint(min(items), sum(items))
"""

# %% solve
def solve(items, target):
    total = 0
    for place, item in enumerate(items):
        total += item
        if total >= target:
            return place + 1

# %% check
def check(items, target):
    return next(place for place in range(1, len(items) + 1) if sum(items[:place]) >= target)
