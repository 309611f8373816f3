"""
ask: Every NOUN holds a letter. How long is the longest stretch that reads the same backwards?
items: bits
ordered: true
"""

# %% solve
def solve(items):
    best = 0
    for middle in range(2 * len(items)):
        left, right = middle // 2, (middle + 1) // 2
        while left >= 0 and right < len(items) and items[left] == items[right]:
            best, left, right = max(best, right - left + 1), left - 1, right + 1
    return best

# %% check
def check(items):
    return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
        if items[start:end] == items[start:end][::-1])
