"""
about: They were in rising order, no two hold the same, and then some from the front were put to the end.
ask: How many of the $count NOUNS were put to the end? It is 0 if they are in rising order.
probe: fuller
items: '(lambda row, cut: row[cut:] + row[:cut])(sorted(chance.sample(range(1, 99), 3 * size)), chance.randint(0, 3 *
  size - 1))'
"""

# %% solve
def solve(items):
    return (len(items) - items.index(min(items))) % len(items)

# %% find
def find(count, fuller):

    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if fuller(count - 1, middle):
            high = middle
        else:
            low = middle + 1
    return (count - low) % count
