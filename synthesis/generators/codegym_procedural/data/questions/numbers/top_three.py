"""
ask: How much do the three fullest NOUNS hold together, or all if there are fewer?
items: some
"""

# %% solve
def solve(items):
    return sum(sorted(items)[-3:])

# %% check
def check(items):
    items, total = list(items), 0
    for _ in range(min(3, len(items))):
        total += max(items)
        items.remove(max(items))
    return total
