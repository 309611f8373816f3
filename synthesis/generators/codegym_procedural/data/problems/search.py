"""
about: You work PLACE. The NOUNS are numbered from 0. ABOUT
question: ASK
tools: [TOOL]
answer: {type: integer}
metered: [METERED]
"""

# %% instances
def draw(chance, size):
    state = {'items': ITEMS}
    EXTRA
    return state
def given(instance):
    return {GIVEN}

# %% code

CHECK
PROBE

# %% solution
def solve(instance):
    LOOKED
    SOLVE

# %% oracle
def oracle(call, given):
    count = given["count"]
    KNOWN
    ASKING
    FIND
