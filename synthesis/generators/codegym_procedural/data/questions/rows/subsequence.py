"""
ask: How many NOUNS can you pick at most, going from first to last, so that each holds more than the one picked
  before?
items: wild
ordered: true
"""

# %% solve
def solve(items):
    tails = []
    for item in items:
        place = sum(tail < item for tail in tails)
        tails[place:place + 1] = [item]
    return len(tails)

# %% check
def check(items):
    longest = []
    for place, item in enumerate(items):
        longest.append(1 + max([longest[other] for other in range(place) if items[other] < item], default=0))
    return max(longest)
