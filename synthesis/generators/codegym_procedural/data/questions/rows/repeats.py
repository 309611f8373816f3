"""
ask: How long is the longest run of NOUNS side by side that all hold the same?
items: ones_and_twos
ordered: true
"""

# %% solve
def solve(items):
    best = length = 1
    for one, two in zip(items, items[1:]):
        length = length + 1 if one == two else 1
        best = max(best, length)
    return best

# %% check
def check(items):
    return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
        if len(set(items[start:end])) == 1)
