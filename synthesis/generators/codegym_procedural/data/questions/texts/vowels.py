"""
ask: How many vowels (a, e, i, o, u) do all NOUNS hold together?
items: words
"""

# %% solve
def solve(items):
    return sum(letter in "aeiou" for word in items for letter in word)

# %% check
def check(items):
    return sum("".join(items).count(vowel) for vowel in "aeiou")
