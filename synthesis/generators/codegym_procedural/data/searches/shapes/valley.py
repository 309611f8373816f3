"""
about: Up to one NOUN each holds less than the one before, and from there on more. No two hold the same.
ask: Which is the number of the emptiest of the $count NOUNS?
probe: fuller
items: '(lambda row, low: sorted(row[:low], reverse=True) + sorted(row[low:]))(chance.sample(range(1, 99), 3 * size),
  chance.randint(1, 3 * size - 1))'
"""

# %% solve
def solve(items):
    return items.index(min(items))

# %% find
def find(count, fuller):

    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if fuller(middle + 1, middle):
            high = middle
        else:
            low = middle + 1
    return low
