"""Questions about accounts with payments, and about points; each with two ways to the answer."""

from __future__ import annotations

from agentmill.synthesis.generators.codegym_procedural.draft import Question

PAYMENTS = '[[chance.choice(["Ada", "Ben", "Cem", "Dora"]), chance.randint(-9, 12)] for _ in range(size + 2)]'
POINTS = "[[chance.randint(0, 9), chance.randint(0, 9)] for _ in range(size + 1)]"
_PAYMENT = ("the name of an account", "an amount that is paid in, or out if it is below 0")
_POINT = ("a coordinate x", "a coordinate y")

PAID = (
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
