"""
ask: What is what the 1st NOUN holds, less the 2nd, plus the 3rd, less the 4th and so on?
items: some
ordered: true
"""

# %% solve
def solve(items):
    return sum(items[::2]) - sum(items[1::2])

# %% check
def check(items):
    total = 0
    for item in reversed(items):
        total = item - total
    return total
