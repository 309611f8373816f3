"""
ask: Of how many NOUNS at most do no two share a day?
items: spans
fields:
  - a first day
  - a last day
"""

# %% solve
def solve(items):
    last = count = 0
    for start, end in sorted(items, key=lambda item: item[1]):
        if start > last:
            last, count = end, count + 1
    return count

# %% check
def check(items):
    best = {}
    for day in range(0, 40):
        ending = [best[start - 1] + 1 for start, end in items if end == day]
        best[day] = max([best.get(day - 1, 0), *ending])
    return best[39]
