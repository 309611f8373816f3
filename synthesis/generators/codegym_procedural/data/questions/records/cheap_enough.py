"""
ask: You need a value of $need. What is the least weight of NOUNS that have it together?
items: goods
fields:
  - a weight
  - a value
extra:
  need: max(1, sum(item[1] for item in items) // 2)
"""

# %% solve
def solve(items, need):
    best = {0: 0}
    for weight, value in items:
        for got, load in list(best.items()):
            more = min(need, got + value)
            best[more] = min(best.get(more, 999), load + weight)
    return best[need]

# %% check
def check(items, need):
    loads = []
    for mask in range(2 ** len(items)):
        taken = [item for place, item in enumerate(items) if mask >> place & 1]
        if sum(item[1] for item in taken) >= need:
            loads.append(sum(item[0] for item in taken))
    return min(loads)
