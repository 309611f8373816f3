"""
about: Up to one NOUN each holds more than the one before, and from there on less. No two hold the same.
ask: Which is the number of the fullest of the $count NOUNS?
probe: fuller
items: '(lambda row, top: sorted(row[:top]) + sorted(row[top:], reverse=True))(chance.sample(range(1, 99), 3 * size),
  chance.randint(1, 3 * size - 1))'
"""

# %% solve
def solve(items):
    return items.index(max(items))

# %% find
def find(count, fuller):

    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if fuller(middle, middle + 1):
            high = middle
        else:
            low = middle + 1
    return low
