"""
ask: List the different words that the NOUNS hold, in alphabetical order.
items: words
answer: {type: array, items: {type: string}}
"""

# %% solve
def solve(items):
    return sorted(set(items))

# %% check
def check(items):
    listed = []
    for word in items:
        if word not in listed:
            listed.insert(sum(other < word for other in listed), word)
    return listed
