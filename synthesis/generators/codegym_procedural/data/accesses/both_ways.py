"""
about: The NOUNS stand in a row from left to right, and each has a name.
told: One NOUN is called $known.
named: true
tools:
  - name: left_of
    description: The name of the NOUN to the left of another; null at the end.
    parameters: {name: {type: string, description: name of the NOUN}}
  - name: right_of
    description: The name of the NOUN to the right of another; null at the end.
    parameters: {name: {type: string, description: name of the NOUN}}
given:
  known: instance["known"]
"""

# %% draw
def draw(state, items, chance):
    state["known"] = chance.choice(state["names"])

# %% code
def left_of(state, name):
    return [None, *state["names"]][_place(state, name)]
def right_of(state, name):
    return [*state["names"], None][_place(state, name) + 1]

# %% oracle
def _places(call, given):
    name = given["known"]
    while True:
        left = call("left_of", name=name)
        if left is None:
            break
        name = left
    while name is not None:
        yield {"name": name}
        name = call("right_of", name=name)
