"""
about: The NOUNS stand in a row, and each has a name.
named: true
tools:
  - name: first_NOUN
    description: The name of the first NOUN of the row.
  - name: NOUN_after
    description: The name of the NOUN behind another; null behind the last.
    parameters: {name: {type: string, description: name of the NOUN}}
"""

# %% code
def first_NOUN(state):
    return state["names"][0]
def NOUN_after(state, name):
    return [*state["names"], None][_place(state, name) + 1]

# %% oracle
def _places(call, given):
    name = call("first_NOUN")
    while name is not None:
        yield {"name": name}
        name = call("NOUN_after", name=name)
