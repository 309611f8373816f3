"""
about: You work PLACE. NOUNS stand in a row, numbered from 0 by their places. No two hold the same.
question: Bring the $count NOUNS ORDER. Then say that it is done.
tools: [TOOL, MOVING]
"""

# %% instances
def draw(chance, size):
    items = chance.sample(range(1, 99), size + 1)
    while items == GOAL:
        chance.shuffle(items)
    return {'items': items}
def given(instance):
    return {'count': len(instance['items'])}

# %% code

CHECK
PROBE
MOVE
def outcome(state):
    return state['items']

# %% solution
def solve(instance):
    items = instance['items']
    return GOAL

# %% oracle
def oracle(call, given):
    SEEN
    goal = (lambda items: GOAL)(list(row))
    PLAN
