"""
ask: Which amount do most NOUNS hold? Of several take the largest.
items: few
"""

# %% solve
def solve(items):
    return max(set(items), key=lambda item: (items.count(item), item))

# %% check
def check(items):
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    most = max(counts.values())
    return max(item for item in counts if counts[item] == most)
