"""
ask: How long is the longest run of NOUNS side by side each of which holds more than the one before?
items: growing
ordered: true
"""

# %% solve
def solve(items):
    best = length = 1
    for one, two in zip(items, items[1:]):
        length = length + 1 if two > one else 1
        best = max(best, length)
    return best

# %% check
def check(items):
    return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
        if all(items[place] < items[place + 1] for place in range(start, end - 1)))
