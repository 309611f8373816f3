"""
ask: You can carry a weight of $capacity. What is the largest value of NOUNS that you can carry?
items: goods
fields:
  - a weight
  - a value
extra:
  capacity: max(3, sum(item[0] for item in items) // 2)
"""

# %% solve
def solve(items, capacity):
    best = [0] * (capacity + 1)
    for weight, value in items:
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]

# %% check
def check(items, capacity):
    best = 0
    for mask in range(2 ** len(items)):
        taken = [item for place, item in enumerate(items) if mask >> place & 1]
        if sum(item[0] for item in taken) <= capacity:
            best = max(best, sum(item[1] for item in taken))
    return best
