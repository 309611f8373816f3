"""
ask: What is the largest sum of one or more NOUNS side by side?
items: signed
ordered: true
"""

# %% solve
def solve(items):
    best = total = items[0]
    for item in items[1:]:
        total = max(total, 0) + item
        best = max(best, total)
    return best

# %% check
def check(items):
    return max(sum(items[start:end]) for start in range(len(items)) for end in range(start + 1, len(items) + 1))
