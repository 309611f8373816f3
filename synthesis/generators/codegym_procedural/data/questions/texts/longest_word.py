"""
ask: Which is the longest word that a NOUN holds? Of several take the first in the alphabet.
items: words
answer: {type: string}
"""

# %% solve
def solve(items):
    return min(items, key=lambda word: (-len(word), word))

# %% check
def check(items):
    longest = max(map(len, items))
    return sorted(word for word in items if len(word) == longest)[0]
