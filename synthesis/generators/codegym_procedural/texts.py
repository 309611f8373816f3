"""Questions about hidden words and letters, each with two ways to the answer."""

from __future__ import annotations

from agentmill.synthesis.generators.codegym_procedural.draft import STRING, STRINGS, Question

WORDS = """[chance.choice(["ten", "net", "stone", "notes", "onset", "level", "rotor", "lamp", "palm", "arm", "mar",
    "ram", "plan", "plane", "planet", "star", "start", "rats", "arts", "deed"]) for _ in range(size + 2)]"""
BITS = '[chance.choice("ab") for _ in range(size + 6)]'
MANY = '[chance.choice("abcdefgh") for _ in range(size + 3)]'
LETTERS = '[chance.choice("abc") for _ in range(size + 3)]'
BRACKETS = '[chance.choice("([])") for _ in range(size + 2)]'

TEXTS = (
    Question(
        name="palindromes",
        ask="How many NOUNS hold a word that reads the same backwards, or whose reverse another NOUN holds?",
        items=WORDS,
        kind="texts",
        solve="return sum(word == word[::-1] or word[::-1] in items for word in items)",
        check='return sum("".join(reversed(word)) in items for word in items)',
    ),
    Question(
        name="longest_word",
        ask="Which is the longest word that a NOUN holds? Of several take the first in the alphabet.",
        items=WORDS,
        answer=STRING,
        kind="texts",
        solve="return min(items, key=lambda word: (-len(word), word))",
        check="""
longest = max(map(len, items))
return sorted(word for word in items if len(word) == longest)[0]
""",
    ),
    Question(
        name="anagrams",
        ask=(
            "How many groups of words made of the same letters are there, when words that stand alone make a group too?"
        ),
        items=WORDS,
        kind="texts",
        solve="return len({tuple(sorted(word)) for word in items})",
        check="""
groups = []
for word in items:
    if not any(sorted(word) == sorted(group) for group in groups):
        groups.append(word)
return len(groups)
""",
    ),
    Question(
        name="prefixes",
        ask="How many pairs of NOUNS are there where one holds the beginning of what the other holds, or the same?",
        items=WORDS,
        kind="texts",
        solve="""
pairs = [(items[one], items[two]) for two in range(len(items)) for one in range(two)]
return sum(one.startswith(two) or two.startswith(one) for one, two in pairs)
""",
        check="""
pairs = 0
for number, word in enumerate(items):
    for other in items[number + 1:]:
        short = min(len(word), len(other))
        pairs += word[:short] == other[:short]
return pairs
""",
    ),
    Question(
        name="vowels",
        ask="How many vowels (a, e, i, o, u) do all NOUNS hold together?",
        items=WORDS,
        kind="texts",
        solve='return sum(letter in "aeiou" for word in items for letter in word)',
        check='return sum("".join(items).count(vowel) for vowel in "aeiou")',
    ),
    Question(
        name="sorted_words",
        ask="List the different words that the NOUNS hold, in alphabetical order.",
        items=WORDS,
        answer=STRINGS,
        kind="texts",
        solve="return sorted(set(items))",
        check="""
listed = []
for word in items:
    if word not in listed:
        listed.insert(sum(other < word for other in listed), word)
return listed
""",
    ),
    Question(
        name="occurrences",
        ask="Every NOUN holds a letter. How often does $pattern stand in the row, overlaps counted?",
        items=BITS,
        extra={"pattern": '"".join(items[:1] + items[2:3])'},
        kind="texts",
        ordered=True,
        solve="""
text = "".join(items)
return sum(text.startswith(pattern, place) for place in range(len(text)))
""",
        check="return sum(list(pattern) == items[place : place + len(pattern)] for place in range(len(items)))",
    ),
    Question(
        name="longest_palindrome",
        ask="Every NOUN holds a letter. How long is the longest stretch that reads the same backwards?",
        items=BITS,
        kind="texts",
        ordered=True,
        solve="""
best = 0
for middle in range(2 * len(items)):
    left, right = middle // 2, (middle + 1) // 2
    while left >= 0 and right < len(items) and items[left] == items[right]:
        best, left, right = max(best, right - left + 1), left - 1, right + 1
return best
""",
        check="""
return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
    if items[start:end] == items[start:end][::-1])
""",
    ),
    Question(
        name="distinct_stretch",
        ask="Every NOUN holds a letter. How long is the longest stretch in which no letter comes twice?",
        items=MANY,
        kind="texts",
        ordered=True,
        solve="""
best = start = 0
for place, letter in enumerate(items):
    while letter in items[start:place]:
        start += 1
    best = max(best, place - start + 1)
return best
""",
        check="""
return max(end - start for start in range(len(items)) for end in range(start + 1, len(items) + 1)
    if len(set(items[start:end])) == end - start)
""",
    ),
    Question(
        name="packed",
        ask=(
            "Every NOUN holds a letter. Write the row with a run of equal letters as the letter and its number: aab "
            "is a2b1."
        ),
        items=LETTERS,
        answer=STRING,
        kind="texts",
        ordered=True,
        solve="""
packed, place = "", 0
while place < len(items):
    end = place
    while end < len(items) and items[end] == items[place]:
        end += 1
    packed, place = packed + f"{items[place]}{end - place}", end
return packed
""",
        check="""
runs = []
for letter in items:
    if runs and runs[-1][0] == letter:
        runs[-1] += letter
    else:
        runs.append(letter)
return "".join(f"{run[0]}{len(run)}" for run in runs)
""",
    ),
    Question(
        name="unclosed",
        ask=(
            "Every NOUN holds a bracket: (, ), [ or ]. How many of them have to be struck out, if a closing one "
            "closes the last open one of its kind and else is struck out, as are those that stay open? Round and "
            "square ones are looked at apart."
        ),
        items=BRACKETS,
        kind="texts",
        ordered=True,
        solve="""
struck = 0
for opening, closing in ("()", "[]"):
    depth = 0
    for bracket in items:
        if bracket == opening:
            depth += 1
        elif bracket == closing and depth:
            depth -= 1
        elif bracket == closing:
            struck += 1
    struck += depth
return struck
""",
        check="""
left = 0
for pair in ("()", "[]"):
    text = "".join(bracket for bracket in items if bracket in pair)
    while pair in text:
        text = text.replace(pair, "")
    left += len(text)
return left
""",
    ),
)
