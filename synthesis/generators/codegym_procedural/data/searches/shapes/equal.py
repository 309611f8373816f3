"""
about: From NOUN to NOUN they hold more or the same.
ask: How many of the $count NOUNS hold exactly $bound?
probe: at_least
items: sorted(chance.choices(range(1, 4 + size), k=3 * size))
extra:
  bound: chance.choice(state["items"])
"""

# %% solve
def solve(items, bound):
    return items.count(bound)

# %% find
def find(count, bound, at_least):
    def first(bound):
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if at_least(middle, bound):
                high = middle
            else:
                low = middle + 1
        return low
    return first(bound + 1) - first(bound)
