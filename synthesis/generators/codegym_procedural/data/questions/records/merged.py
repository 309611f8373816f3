"""
ask: NOUNS that share a day are put into one group, and so are groups. How many groups are there?
items: spread
fields:
  - a first day
  - a last day
"""

# %% solve
def solve(items):
    groups, last = 0, -1
    for start, end in sorted(items):
        groups += start > last
        last = max(last, end)
    return groups

# %% check
def check(items):
    groups = []
    for start, end in items:
        near = [group for group in groups if any(one <= end and start <= two for one, two in group)]
        groups = [group for group in groups if group not in near]
        groups.append([[start, end], *(each for group in near for each in group)])
    return len(groups)
