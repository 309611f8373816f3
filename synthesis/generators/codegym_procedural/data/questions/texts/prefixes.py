"""
ask: How many pairs of NOUNS are there where one holds the beginning of what the other holds, or the same?
items: words
"""

# %% solve
def solve(items):
    pairs = [(items[one], items[two]) for two in range(len(items)) for one in range(two)]
    return sum(one.startswith(two) or two.startswith(one) for one, two in pairs)

# %% check
def check(items):
    pairs = 0
    for number, word in enumerate(items):
        for other in items[number + 1:]:
            short = min(len(word), len(other))
            pairs += word[:short] == other[:short]
    return pairs
