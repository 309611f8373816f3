"""
about: You work PLACE. ABOUT
question: QUESTION
tools: TOOLS
answer: ANSWER
"""

# %% instances
def draw(chance, size):
    ITEMS
    state = {"items": items}
    DRAWS
    return state
def given(instance):
    return {GIVEN}

# %% code
ACCESS


READING

# %% solution
def solve(instance):
    LOOKED
    SOLVE

# %% oracle
PLACES


READ

def _answer(NAMES):
    CHECK
def oracle(call, given):
    items = [_read(call, given, where) for where in _places(call, given)]
    FOLD
    return _answer(TOLD)
