"""Questions about things of two parts: spans of days, goods, payments, points; each with two ways to the answer."""

from __future__ import annotations

from synthesis.generators.codegym_procedural.draft import Question

SPANS = "[[start, start + chance.randint(1, 9)] for start in chance.choices(range(1, 20), k=size + 1)]"
SPREAD = "[[start, start + chance.randint(1, 5)] for start in chance.choices(range(1, 50), k=size + 1)]"
GOODS = "[[chance.randint(1, 9), chance.randint(1, 20)] for _ in range(min(size, 8) + 1)]"
PAYMENTS = '[[chance.choice(["Ada", "Ben", "Cem", "Dora"]), chance.randint(-9, 12)] for _ in range(size + 2)]'
POINTS = "[[chance.randint(0, 9), chance.randint(0, 9)] for _ in range(size + 1)]"
_SPAN = ("a first day", "a last day")
_GOOD = ("a weight", "a value")
_PAYMENT = ("the name of an account", "an amount that is paid in, or out if it is below 0")
_POINT = ("a coordinate x", "a coordinate y")

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
    Question(
        name="account",
        ask="All accounts start at 0. What has the account $name in the end?",
        items=PAYMENTS,
        fields=_PAYMENT,
        extra={"name": "chance.choice(items)[0]"},
        kind="records",
        solve="return sum(amount for account, amount in items if account == name)",
        check="""
balance = {}
for account, amount in items:
    balance[account] = balance.get(account, 0) + amount
return balance[name]
""",
    ),
    Question(
        name="richest",
        ask="All accounts start at 0. How much is on the account that has most in the end?",
        items=PAYMENTS,
        fields=_PAYMENT,
        kind="records",
        solve="return max(sum(amount for other, amount in items if other == account) for account, _ in items)",
        check="""
balance = {}
for account, amount in items:
    balance[account] = balance.get(account, 0) + amount
return max(balance.values())
""",
    ),
    Question(
        name="refused",
        ask=(
            "All accounts start at 0, and a payment that would take one below 0 is refused. How many of the NOUNS, in"
            " order, are refused?"
        ),
        items=PAYMENTS,
        fields=_PAYMENT,
        kind="records",
        ordered=True,
        solve="""
balance, refused = {}, 0
for account, amount in items:
    after = balance.get(account, 0) + amount
    if after < 0:
        refused += 1
    else:
        balance[account] = after
return refused
""",
        check="""
refused = 0
for name in {account for account, _ in items}:
    left = 0
    for account, amount in items:
        if account == name:
            refused += left + amount < 0
            left += amount if left + amount >= 0 else 0
return refused
""",
    ),
    Question(
        name="kept_total",
        ask=(
            "All accounts start at 0, and a payment that would take one below 0 is refused. How much is on all "
            "accounts after the NOUNS in order?"
        ),
        items=PAYMENTS,
        fields=_PAYMENT,
        kind="records",
        ordered=True,
        solve="""
balance = {}
for account, amount in items:
    if balance.get(account, 0) + amount >= 0:
        balance[account] = balance.get(account, 0) + amount
return sum(balance.values())
""",
        check="""
total = 0
for name in {account for account, _ in items}:
    left = 0
    for account, amount in items:
        left += amount if account == name and left + amount >= 0 else 0
    total += left
return total
""",
    ),
    Question(
        name="lowest",
        ask=(
            "One till starts with 20 and takes part in every payment. How much is in it when it holds least, the "
            "start counted?"
        ),
        items=PAYMENTS,
        fields=_PAYMENT,
        kind="records",
        ordered=True,
        solve="""
total = least = 20
for _, amount in items:
    total += amount
    least = min(least, total)
return least
""",
        check="return min(20 + sum(amount for _, amount in items[:end]) for end in range(len(items) + 1))",
    ),
    Question(
        name="closest",
        ask="Distances are counted along x plus along y. How far is the nearest NOUN from $x, $y?",
        items=POINTS,
        fields=_POINT,
        extra={"x": "chance.randint(0, 9)", "y": "chance.randint(0, 9)"},
        kind="records",
        solve="return min(abs(one - x) + abs(two - y) for one, two in items)",
        check="return sorted(max(one, x) - min(one, x) + max(two, y) - min(two, y) for one, two in items)[0]",
    ),
    Question(
        name="box",
        ask="How large is the smallest rectangle along the axes that holds all NOUNS (width times height)?",
        items=POINTS,
        fields=_POINT,
        kind="records",
        solve="""
xs, ys = zip(*items)
return (max(xs) - min(xs)) * (max(ys) - min(ys))
""",
        check="""
ranked = sorted(item[0] for item in items), sorted(item[1] for item in items)
return (ranked[0][-1] - ranked[0][0]) * (ranked[1][-1] - ranked[1][0])
""",
    ),
    Question(
        name="tour",
        ask=(
            "You visit the NOUNS in order, and go along x and along y only. How long is the way from the first to the"
            " last?"
        ),
        items=POINTS,
        fields=_POINT,
        kind="records",
        ordered=True,
        solve="return sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in zip(items, items[1:]))",
        check="""
way = 0
for place in range(1, len(items)):
    for axis in (0, 1):
        way += abs(items[place][axis] - items[place - 1][axis])
return way
""",
    ),
    Question(
        name="in_line",
        ask="How many pairs of NOUNS have the same x or the same y, but not both?",
        items=POINTS,
        fields=_POINT,
        kind="records",
        solve="""
pairs = [(items[one], items[two]) for two in range(len(items)) for one in range(two)]
return sum((one[0] == two[0]) != (one[1] == two[1]) for one, two in pairs)
""",
        check="""
pairs = 0
for number, (x, y) in enumerate(items):
    for u, v in items[number + 1:]:
        pairs += (x == u) + (y == v) == 1
return pairs
""",
    ),
)
