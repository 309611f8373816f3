"""
ask: You can carry a weight of $capacity. How many NOUNS can you carry at most?
items: goods
fields:
  - a weight
  - a value
extra:
  capacity: max(3, sum(item[0] for item in items) // 2)
"""

# %% solve
def solve(items, capacity):
    count = 0
    for weight, _ in sorted(items):
        if weight <= capacity:
            count, capacity = count + 1, capacity - weight
        else:
            break
    return count

# %% check
def check(items, capacity):
    weights = sorted(item[0] for item in items)
    return max(number for number in range(len(weights) + 1) if sum(weights[:number]) <= capacity)
