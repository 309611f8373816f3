"""
ask: The NOUNS are walls of these heights side by side. How much rain stays between them?
items: few
ordered: true
"""

# %% solve
def solve(items):
    return sum(min(max(items[: place + 1]), max(items[place:])) - item for place, item in enumerate(items))

# %% check
def check(items):
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
