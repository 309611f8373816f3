"""More questions about a row of hidden numbers: what can be picked from it, and what becomes of it."""

from __future__ import annotations

from agentmill.synthesis.generators.codegym_procedural.draft import INTEGERS, Question
from agentmill.synthesis.generators.codegym_procedural.rows import FEW, GROWING, SIGNED, SOME, WILD

PICKS = (
    Question(
        name="subsequence",
        ask=(
            "How many NOUNS can you pick at most, going from first to last, so that each holds more than the one "
            "picked before?"
        ),
        items=WILD,
        ordered=True,
        solve="""
tails = []
for item in items:
    place = sum(tail < item for tail in tails)
    tails[place:place + 1] = [item]
return len(tails)
""",
        check="""
longest = []
for place, item in enumerate(items):
    longest.append(1 + max([longest[other] for other in range(place) if items[other] < item], default=0))
return max(longest)
""",
    ),
    Question(
        name="windows",
        ask="What is the largest sum of $width NOUNS side by side?",
        items=SIGNED,
        extra={"width": "chance.randint(2, len(items) - 1) if len(items) > 2 else 2"},
        ordered=True,
        solve="return max(sum(items[start : start + width]) for start in range(len(items) - width + 1))",
        check="""
total = best = sum(items[:width])
for place in range(width, len(items)):
    total += items[place] - items[place - width]
    best = max(best, total)
return best
""",
    ),
    Question(
        name="balance",
        ask="At how many places can the row be cut in two so that the left part holds more than the right?",
        items=SIGNED,
        ordered=True,
        solve="return sum(sum(items[:cut]) > sum(items[cut:]) for cut in range(1, len(items)))",
        check="""
left, total, cuts = 0, sum(items), 0
for item in items[:-1]:
    left += item
    cuts += 2 * left > total
return cuts
""",
    ),
    Question(
        name="repeats",
        ask="How long is the longest run of NOUNS side by side that all hold the same?",
        items="chance.choices((1, 2), weights=(4, 1), k=size + 3)",
        ordered=True,
        solve="""
best = length = 1
for one, two in zip(items, items[1:]):
    length = length + 1 if one == two else 1
    best = max(best, length)
return best
""",
        check="""
return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
    if len(set(items[start:end])) == 1)
""",
    ),
    Question(
        name="visible",
        ask="Seen from the front, how many NOUNS hold more than every NOUN before them?",
        items=GROWING,
        ordered=True,
        solve="return sum(all(other < item for other in items[:place]) for place, item in enumerate(items))",
        check="""
seen, most = 0, -99
for item in items:
    if item > most:
        seen, most = seen + 1, item
return seen
""",
    ),
    Question(
        name="waits",
        ask=(
            "Of each NOUN but the last, say how many NOUNS further the next one is that holds more, or 0 if there is "
            "none."
        ),
        items=SOME,
        answer=INTEGERS,
        ordered=True,
        solve="""
waits, open_ = [0] * len(items), []
for place, item in enumerate(items):
    while open_ and items[open_[-1]] < item:
        waits[open_[-1]] = place - open_[-1]
        open_.pop()
    open_.append(place)
return waits[:-1]
""",
        check="""
waits = []
for place in range(len(items) - 1):
    further = [other - place for other in range(place + 1, len(items)) if items[other] > items[place]]
    waits.append(min(further, default=0))
return waits
""",
    ),
    Question(
        name="totals",
        ask="List how much you have got after each NOUN if you empty them one after the other.",
        items=SOME,
        answer=INTEGERS,
        ordered=True,
        solve="""
totals = []
for item in items:
    totals.append(item + (totals[-1] if totals else 0))
return totals
""",
        check="return [sum(items[: place + 1]) for place in range(len(items))]",
    ),
    Question(
        name="backwards",
        ask="List what the NOUNS hold, from the last to the first.",
        items=SOME,
        answer=INTEGERS,
        ordered=True,
        solve="return items[::-1]",
        check="return list(reversed(items))",
    ),
    Question(
        name="without_repeats",
        ask="List what the NOUNS hold in their order, leaving out what came before already.",
        items=FEW,
        answer=INTEGERS,
        ordered=True,
        solve="return list(dict.fromkeys(items))",
        check="return [item for place, item in enumerate(items) if item not in items[:place]]",
    ),
)
