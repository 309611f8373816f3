"""
ask: Of each NOUN but the last, say how many NOUNS further the next one is that holds more, or 0 if there is none.
items: some
ordered: true
answer: {type: array, items: {type: integer}}
"""

# %% solve
def solve(items):
    waits, open_ = [0] * len(items), []
    for place, item in enumerate(items):
        while open_ and items[open_[-1]] < item:
            waits[open_[-1]] = place - open_[-1]
            open_.pop()
        open_.append(place)
    return waits[:-1]

# %% check
def check(items):
    waits = []
    for place in range(len(items) - 1):
        further = [other - place for other in range(place + 1, len(items)) if items[other] > items[place]]
        waits.append(min(further, default=0))
    return waits
