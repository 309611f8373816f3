"""
ask: How many pairs of NOUNS hold $target together?
items: few
extra:
  target: sum(chance.sample(items, 2))
"""

# %% solve
def solve(items, target):
    seen, pairs = {}, 0
    for item in items:
        pairs += seen.get(target - item, 0)
        seen[item] = seen.get(item, 0) + 1
    return pairs

# %% check
def check(items, target):
    return sum(items[one] + items[two] == target for two in range(len(items)) for one in range(two))
