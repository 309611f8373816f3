"""
ask: A lift carries one or two NOUNS that hold at most $limit together. How many rides do all NOUNS take?
items: some
extra:
  limit: max(items) + chance.randint(2, 12)
"""

# %% solve
def solve(items, limit):
    ranked, rides = sorted(items), 0
    while ranked:
        heavy = ranked.pop()
        if ranked and ranked[0] + heavy <= limit:
            ranked.pop(0)
        rides += 1
    return rides

# %% check
def check(items, limit):
    left, rides = sorted(items, reverse=True), 0
    while left:
        heavy = left.pop(0)
        partner = [item for item in left if item + heavy <= limit][:1]
        for item in partner:
            left.remove(item)
        rides += 1
    return rides
