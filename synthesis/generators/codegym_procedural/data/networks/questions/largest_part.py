"""
ask: How many stops does the largest part have, if those that can be reached from each other are one part?
"""

# %% solve
def solve(names, ways):
    STEPS
    return max(len(steps(name)) for name in names)

# %% check
def check(names, ways):
    HOPS
    return max(sum(far[one, two] < 999 for two in names) for one in names)
