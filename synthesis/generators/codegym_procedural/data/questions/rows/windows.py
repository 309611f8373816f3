"""
ask: What is the largest sum of $width NOUNS side by side?
items: signed
ordered: true
extra:
  width: chance.randint(2, len(items) - 1) if len(items) > 2 else 2
"""

# %% solve
def solve(items, width):
    return max(sum(items[start : start + width]) for start in range(len(items) - width + 1))

# %% check
def check(items, width):
    total = best = sum(items[:width])
    for place in range(width, len(items)):
        total += items[place] - items[place - width]
        best = max(best, total)
    return best
