"""
about: From NOUN to NOUN they hold more or the same.
ask: Which is the number of the first NOUN that holds at least $bound? It is $count if none does.
probe: at_least
items: sorted(chance.randint(1, 60) for _ in range(3 * size))
extra:
  bound: chance.choice(state["items"])
"""

# %% solve
def solve(items, bound):
    return sum(item < bound for item in items)

# %% find
def find(count, bound, at_least):

    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if at_least(middle, bound):
            high = middle
        else:
            low = middle + 1
    return low
