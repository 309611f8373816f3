"""
about: From NOUN to NOUN they hold more or the same.
ask: How many of the $count NOUNS hold at most 5 more or less than $bound?
probe: at_least
items: sorted(chance.randint(1, 60) for _ in range(3 * size))
extra:
  bound: chance.choice(state["items"])
"""

# %% solve
def solve(items, bound):
    return sum(abs(item - bound) <= 5 for item in items)

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
    return first(bound + 6) - first(bound - 5)
