"""
ask: How many NOUNS hold a word that reads the same backwards, or whose reverse another NOUN holds?
items: words
"""

# %% solve
def solve(items):
    return sum(word == word[::-1] or word[::-1] in items for word in items)

# %% check
def check(items):
    return sum("".join(reversed(word)) in items for word in items)
