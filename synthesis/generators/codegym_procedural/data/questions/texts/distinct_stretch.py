"""
ask: Every NOUN holds a letter. How long is the longest stretch in which no letter comes twice?
items: many
ordered: true
"""

# %% solve
def solve(items):
    best = start = 0
    for place, letter in enumerate(items):
        while letter in items[start:place]:
            start += 1
        best = max(best, place - start + 1)
    return best

# %% check
def check(items):
    return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
        if len(set(items[start:end])) == end - start)
