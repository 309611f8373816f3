"""Questions about a row of hidden numbers, where the order matters, each with two ways to the answer."""

from __future__ import annotations

from agentmill.synthesis.generators.codegym_procedural.draft import Question

SOME = "[chance.randint(1, 30) for _ in range(size + 1)]"
FEW = "[chance.randint(1, 6) for _ in range(size + 2)]"
WILD = "[3 * place + chance.randint(1, 25) for place in range(size + 2)]"
SIGNED = "[chance.randint(-9, 12) for _ in range(size + 2)]"
GROWING = "[2 * place + chance.randint(1, 9) for place in range(size + 2)]"

ROWS = (
    Question(
        name="rise",
        ask="How long is the longest run of NOUNS side by side each of which holds more than the one before?",
        items=GROWING,
        ordered=True,
        solve="""
best = length = 1
for one, two in zip(items, items[1:]):
    length = length + 1 if two > one else 1
    best = max(best, length)
return best
""",
        check="""
return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
    if all(items[place] < items[place + 1] for place in range(start, end - 1)))
""",
    ),
    Question(
        name="jump",
        ask="By how much do two NOUNS side by side differ at most?",
        items=SOME,
        ordered=True,
        solve="return max(abs(two - one) for one, two in zip(items, items[1:]))",
        check="return max(abs(items[place] - items[place - 1]) for place in range(1, len(items)))",
    ),
    Question(
        name="best_stretch",
        ask="What is the largest sum of one or more NOUNS side by side?",
        items=SIGNED,
        ordered=True,
        solve="""
best = total = items[0]
for item in items[1:]:
    total = max(total, 0) + item
    best = max(best, total)
return best
""",
        check="""
return max(sum(items[start:end]) for start in range(len(items)) for end in range(start + 1, len(items) + 1))
""",
    ),
    Question(
        name="inversions",
        ask="How many pairs of NOUNS are there of which the earlier one holds more?",
        items=SOME,
        ordered=True,
        solve="return sum(items[one] > items[two] for two in range(len(items)) for one in range(two))",
        check="""
items, swaps = list(items), 0
for _ in range(len(items)):
    for place in range(1, len(items)):
        if items[place - 1] > items[place]:
            items[place - 1], items[place] = items[place], items[place - 1]
            swaps += 1
return swaps
""",
    ),
    Question(
        name="peaks",
        ask="How many NOUNS hold more than each NOUN right beside them?",
        items=SOME,
        ordered=True,
        solve="""
beside = [items[max(place - 1, 0) : place] + items[place + 1 : place + 2] for place in range(len(items))]
return sum(item > max(others) for item, others in zip(items, beside))
""",
        check="""
walled = [-99, *items, -99]
return sum(walled[place - 1] < walled[place] > walled[place + 1] for place in range(1, len(walled) - 1))
""",
    ),
    Question(
        name="profit",
        ask=(
            "If you buy at what one NOUN says and sell at what a later one says, how much do you gain at most? It is "
            "0 if there is nothing to gain."
        ),
        items=SOME,
        ordered=True,
        solve="""
low, best = items[0], 0
for item in items:
    low, best = min(low, item), max(best, item - min(low, item))
return best
""",
        check="return max(0, *(items[two] - items[one] for two in range(1, len(items)) for one in range(two)))",
    ),
    Question(
        name="trades",
        ask=(
            "Every NOUN says the price of a day. You hold at most one piece, and may buy and sell as often as you "
            "like. How much do you gain at most?"
        ),
        items=SOME,
        ordered=True,
        solve="return sum(max(two - one, 0) for one, two in zip(items, items[1:]))",
        check="""
cash, held = 0, -items[0]
for item in items[1:]:
    cash, held = max(cash, held + item), max(held, cash - item)
return cash
""",
    ),
    Question(
        name="fill",
        ask="You empty the NOUNS one after the other. After how many have you got $target or more?",
        items=SOME,
        extra={"target": "chance.randint(min(items), sum(items))"},
        ordered=True,
        solve="""
total = 0
for place, item in enumerate(items):
    total += item
    if total >= target:
        return place + 1
""",
        check="return next(place for place in range(1, len(items) + 1) if sum(items[:place]) >= target)",
    ),
    Question(
        name="alternating",
        ask="What is what the 1st NOUN holds, less the 2nd, plus the 3rd, less the 4th and so on?",
        items=SOME,
        ordered=True,
        solve="return sum(items[::2]) - sum(items[1::2])",
        check="""
total = 0
for item in reversed(items):
    total = item - total
return total
""",
    ),
    Question(
        name="rob",
        ask="You take some NOUNS, but never two side by side. How much do you get at most?",
        items="[chance.randint(1, 30) for _ in range(min(size, 9) + 1)]",
        ordered=True,
        solve="""
one = two = 0
for item in items:
    one, two = two, max(two, one + item)
return two
""",
        check="""
best = 0
for mask in range(2 ** len(items)):
    if not mask & mask >> 1:
        best = max(best, sum(item for place, item in enumerate(items) if mask >> place & 1))
return best
""",
    ),
    Question(
        name="water",
        ask="The NOUNS are walls of these heights side by side. How much rain stays between them?",
        items=FEW,
        ordered=True,
        solve="""
return sum(min(max(items[: place + 1]), max(items[place:])) - item for place, item in enumerate(items))
""",
        check="""
left, right, kept, wall = 0, len(items) - 1, 0, 0
while left < right:
    low = min(items[left], items[right])
    wall = max(wall, low)
    kept += wall - low
    if items[left] <= items[right]:
        left += 1
    else:
        right -= 1
return kept
""",
    ),
)
