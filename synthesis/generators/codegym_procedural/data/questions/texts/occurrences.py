"""
ask: Every NOUN holds a letter. How often does $pattern stand in the row, overlaps counted?
items: bits
ordered: true
extra:
  pattern: '"".join(items[:1] + items[2:3])'
"""

# %% solve
def solve(items, pattern):
    text = "".join(items)
    return sum(text.startswith(pattern, place) for place in range(len(text)))

# %% check
def check(items, pattern):
    return sum(list(pattern) == items[place : place + len(pattern)] for place in range(len(items)))
