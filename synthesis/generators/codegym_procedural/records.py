"""Questions about things of two parts, spans of days and goods; each with two ways to the answer."""

from __future__ import annotations

from agentmill.synthesis.generators.codegym_procedural.draft import Question

SPANS = "[[start, start + chance.randint(1, 9)] for start in chance.choices(range(1, 20), k=size + 1)]"
SPREAD = "[[start, start + chance.randint(1, 5)] for start in chance.choices(range(1, 50), k=size + 1)]"
GOODS = "[[chance.randint(1, 9), chance.randint(1, 20)] for _ in range(min(size, 8) + 1)]"
_SPAN = ("a first day", "a last day")
_GOOD = ("a weight", "a value")

RECORDS = (
    Question(
        name="most_spans",
        ask="Of how many NOUNS at most do no two share a day?",
        items=SPANS,
        fields=_SPAN,
        kind="records",
        solve="""
last = count = 0
for start, end in sorted(items, key=lambda item: item[1]):
    if start > last:
        last, count = end, count + 1
return count
""",
        check="""
best = {}
for day in range(0, 40):
    ending = [best[start - 1] + 1 for start, end in items if end == day]
    best[day] = max([best.get(day - 1, 0), *ending])
return best[39]
""",
    ),
    Question(
        name="overlap",
        ask="How many NOUNS have the same day at most?",
        items=SPANS,
        fields=_SPAN,
        kind="records",
        solve="return max(sum(start <= day <= end for start, end in items) for day in range(40))",
        check="return max(sum(start <= other[0] <= end for start, end in items) for other in items)",
    ),
    Question(
        name="covered",
        ask="How many days belong to at least one NOUN?",
        items=SPANS,
        fields=_SPAN,
        kind="records",
        solve="return len({day for start, end in items for day in range(start, end + 1)})",
        check="""
total = last = 0
for start, end in sorted(items):
    total += max(0, end - max(start - 1, last))
    last = max(last, end)
return total
""",
    ),
    Question(
        name="free",
        ask="How many days between the first day of all and the last belong to no NOUN?",
        items=SPREAD,
        fields=_SPAN,
        kind="records",
        solve="""
days = {day for start, end in items for day in range(start, end + 1)}
return max(days) - min(days) + 1 - len(days)
""",
        check="""
free, last = 0, min(items)[1]
for start, end in sorted(items):
    free += max(0, start - last - 1)
    last = max(last, end)
return free
""",
    ),
    Question(
        name="merged",
        ask="NOUNS that share a day are put into one group, and so are groups. How many groups are there?",
        items=SPREAD,
        fields=_SPAN,
        kind="records",
        solve="""
groups, last = 0, -1
for start, end in sorted(items):
    groups += start > last
    last = max(last, end)
return groups
""",
        check="""
groups = []
for start, end in items:
    near = [group for group in groups if any(one <= end and start <= two for one, two in group)]
    groups = [group for group in groups if group not in near]
    groups.append([[start, end], *(each for group in near for each in group)])
return len(groups)
""",
    ),
    Question(
        name="knapsack",
        ask="You can carry a weight of $capacity. What is the largest value of NOUNS that you can carry?",
        items=GOODS,
        fields=_GOOD,
        extra={"capacity": "max(3, sum(item[0] for item in items) // 2)"},
        kind="records",
        solve="""
best = [0] * (capacity + 1)
for weight, value in items:
    for room in range(capacity, weight - 1, -1):
        best[room] = max(best[room], best[room - weight] + value)
return best[capacity]
""",
        check="""
best = 0
for mask in range(2 ** len(items)):
    taken = [item for place, item in enumerate(items) if mask >> place & 1]
    if sum(item[0] for item in taken) <= capacity:
        best = max(best, sum(item[1] for item in taken))
return best
""",
    ),
    Question(
        name="most_goods",
        ask="You can carry a weight of $capacity. How many NOUNS can you carry at most?",
        items=GOODS,
        fields=_GOOD,
        extra={"capacity": "max(3, sum(item[0] for item in items) // 2)"},
        kind="records",
        solve="""
count = 0
for weight, _ in sorted(items):
    if weight <= capacity:
        count, capacity = count + 1, capacity - weight
    else:
        break
return count
""",
        check="""
weights = sorted(item[0] for item in items)
return max(number for number in range(len(weights) + 1) if sum(weights[:number]) <= capacity)
""",
    ),
    Question(
        name="cheap_enough",
        ask="You need a value of $need. What is the least weight of NOUNS that have it together?",
        items=GOODS,
        fields=_GOOD,
        extra={"need": "max(1, sum(item[1] for item in items) // 2)"},
        kind="records",
        solve="""
best = {0: 0}
for weight, value in items:
    for got, load in list(best.items()):
        more = min(need, got + value)
        best[more] = min(best.get(more, 999), load + weight)
return best[need]
""",
        check="""
loads = []
for mask in range(2 ** len(items)):
    taken = [item for place, item in enumerate(items) if mask >> place & 1]
    if sum(item[1] for item in taken) >= need:
        loads.append(sum(item[0] for item in taken))
return min(loads)
""",
    ),
    Question(
        name="undominated",
        ask="Of how many NOUNS is there no other that weighs less and is worth more?",
        items=GOODS,
        fields=_GOOD,
        kind="records",
        solve="""
return sum(not any(other[0] < weight and other[1] > value for other in items) for weight, value in items)
""",
        check="""
kept = 0
for item in items:
    better = [1 for other in items if item[0] > other[0] and item[1] < other[1]]
    kept += not better
return kept
""",
    ),
)
