"""
ask: 'Every NOUN holds a bracket: (, ), [ or ]. How many of them have to be struck out, if a closing one closes the last
  open one of its kind and else is struck out, as are those that stay open? Round and square ones are looked at apart.'
items: brackets
ordered: true
"""

# %% solve
def solve(items):
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

# %% check
def check(items):
    left = 0
    for pair in ("()", "[]"):
        text = "".join(bracket for bracket in items if bracket in pair)
        while pair in text:
            text = text.replace(pair, "")
        left += len(text)
    return left
