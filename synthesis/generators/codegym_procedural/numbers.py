"""Questions about hidden numbers whose order does not matter, each with two ways to the answer."""

from __future__ import annotations

from agentmill.synthesis.generators.codegym_procedural.draft import Question

SOME = "[chance.randint(1, 30) for _ in range(size + 1)]"
FEW = "[chance.randint(1, 6) for _ in range(size + 2)]"

NUMBERS = (
    Question(
        name="largest",
        ask="How much does the fullest of all NOUNS hold?",
        items=SOME,
        solve="return max(items)",
        check="return sorted(items)[-1]",
    ),
    Question(
        name="smallest",
        ask="How much does the emptiest of all NOUNS hold?",
        items=SOME,
        solve="return min(items)",
        check="return sorted(items)[0]",
    ),
    Question(
        name="total",
        ask="How much do all NOUNS hold together?",
        items=SOME,
        solve="return sum(items)",
        check="return sum(sorted(items))",
    ),
    Question(
        name="range",
        ask="How much more does the fullest NOUN hold than the emptiest?",
        items=SOME,
        solve="return max(items) - min(items)",
        check="return sorted(items)[-1] - sorted(items)[0]",
    ),
    Question(
        name="second",
        ask="How much does the NOUN hold that is second if the fullest comes first?",
        items=SOME,
        solve="return sorted(items)[-2]",
        check="""
items = list(items)
items.remove(max(items))
return max(items)
""",
    ),
    Question(
        name="middle",
        ask=(
            "How much does the NOUN hold that is in the middle if all are put in order of what they hold? Of two in "
            "the middle take the one that holds less."
        ),
        items=SOME,
        solve="return sorted(items)[(len(items) - 1) // 2]",
        check="""
items = list(items)
while len(items) > 2:
    items.remove(max(items))
    items.remove(min(items))
return min(items)
""",
    ),
    Question(
        name="above",
        ask="How many NOUNS hold more than $bound?",
        items=SOME,
        extra={"bound": "chance.choice(items) - 1"},
        solve="return sum(item > bound for item in items)",
        check="return len([item for item in items if not item <= bound])",
    ),
    Question(
        name="sum_above",
        ask="How much do all NOUNS hold together that hold at least $bound each?",
        items=SOME,
        extra={"bound": "chance.choice(items)"},
        solve="return sum(item for item in items if item >= bound)",
        check="return sum(items) - sum(item for item in items if item < bound)",
    ),
    Question(
        name="between",
        ask="How many NOUNS hold at least $low and at most $high?",
        items=SOME,
        extra={"low": "min(chance.sample(items, 2))", "high": "low + chance.randint(3, 12)"},
        solve="return sum(low <= item <= high for item in items)",
        check="return len(items) - sum(item < low for item in items) - sum(item > high for item in items)",
    ),
    Question(
        name="kinds",
        ask="How many different amounts do the NOUNS hold?",
        items=FEW,
        solve="return len(set(items))",
        check="return sum(item not in items[:place] for place, item in enumerate(items))",
    ),
    Question(
        name="commonest",
        ask="Which amount do most NOUNS hold? Of several take the largest.",
        items=FEW,
        solve="return max(set(items), key=lambda item: (items.count(item), item))",
        check="""
counts = {}
for item in items:
    counts[item] = counts.get(item, 0) + 1
most = max(counts.values())
return max(item for item in counts if counts[item] == most)
""",
    ),
    Question(
        name="pairs",
        ask="How many pairs of NOUNS hold $target together?",
        items=FEW,
        extra={"target": "sum(chance.sample(items, 2))"},
        solve="""
seen, pairs = {}, 0
for item in items:
    pairs += seen.get(target - item, 0)
    seen[item] = seen.get(item, 0) + 1
return pairs
""",
        check="return sum(items[one] + items[two] == target for two in range(len(items)) for one in range(two))",
    ),
    Question(
        name="nearest",
        ask="How far apart are the amounts of the two NOUNS that hold most nearly the same?",
        items="[chance.randint(1, 99) for _ in range(min(size, 6) + 1)]",
        solve="""
ranked = sorted(items)
return min(high - low for low, high in zip(ranked, ranked[1:]))
""",
        check="return min(abs(items[one] - items[two]) for two in range(len(items)) for one in range(two))",
    ),
    Question(
        name="top_three",
        ask="How much do the three fullest NOUNS hold together, or all if there are fewer?",
        items=SOME,
        solve="return sum(sorted(items)[-3:])",
        check="""
items, total = list(items), 0
for _ in range(min(3, len(items))):
    total += max(items)
    items.remove(max(items))
return total
""",
    ),
    Question(
        name="missing",
        ask="Which is the smallest amount above 0 that no NOUN holds?",
        items=FEW,
        solve="""
amount = 1
while amount in items:
    amount += 1
return amount
""",
        check="return min(amount for amount in range(1, len(items) + 2) if amount not in items)",
    ),
    Question(
        name="split",
        ask=(
            "The NOUNS are shared by two people so that what they get differs as little as possible. How much is the "
            "difference?"
        ),
        items="[chance.randint(1, 30) for _ in range(min(size, 9) + 1)]",
        solve="""
sums = {0}
for item in items:
    sums |= {total + item for total in sums}
return min(abs(sum(items) - 2 * total) for total in sums)
""",
        check="""
best = sum(items)
for mask in range(2 ** len(items)):
    best = min(best, abs(sum(item if mask >> place & 1 else -item for place, item in enumerate(items))))
return best
""",
    ),
    Question(
        name="boats",
        ask="A lift carries one or two NOUNS that hold at most $limit together. How many rides do all NOUNS take?",
        items=SOME,
        extra={"limit": "max(items) + chance.randint(2, 12)"},
        solve="""
ranked, rides = sorted(items), 0
while ranked:
    heavy = ranked.pop()
    if ranked and ranked[0] + heavy <= limit:
        ranked.pop(0)
    rides += 1
return rides
""",
        check="""
left, rides = sorted(items, reverse=True), 0
while left:
    heavy = left.pop(0)
    partner = [item for item in left if item + heavy <= limit][:1]
    for item in partner:
        left.remove(item)
    rides += 1
return rides
""",
    ),
    Question(
        name="levels",
        ask=(
            "NOUNS are brought to the amount of the middle one (of two the one that holds less), taking or adding 1 "
            "at a time. How many times is that?"
        ),
        items=SOME,
        solve="""
middle = sorted(items)[(len(items) - 1) // 2]
return sum(abs(item - middle) for item in items)
""",
        check="return min(sum(abs(item - goal) for item in items) for goal in items)",
    ),
    Question(
        name="divisor",
        ask="What is the largest number that divides what every NOUN holds?",
        items="(lambda factor: [factor * chance.randint(1, 9) for _ in range(size + 1)])(chance.randint(2, 9))",
        solve="""
divisor = 0
for item in items:
    while item:
        divisor, item = item, divisor % item
return divisor
""",
        check="""
return max(number for number in range(1, max(items) + 1) if all(item % number == 0 for item in items))
""",
    ),
    Question(
        name="reachable",
        ask="How many different amounts above 0 can be had by taking some of the NOUNS whole?",
        items="[chance.randint(1, 12) for _ in range(min(size, 7) + 1)]",
        solve="""
sums = {0}
for item in items:
    sums |= {total + item for total in sums}
return len(sums) - 1
""",
        check="""
return len({sum(item for place, item in enumerate(items) if mask >> place & 1) for mask in range(1, 2 ** len(items))})
""",
    ),
)
