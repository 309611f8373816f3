"""
about: Some NOUNS hang below others. One hangs on top.
named: true
ordered: false
tools:
  - name: top
    description: The name of the NOUN on top.
  - name: below
    description: The names of the NOUNS that hang right below one.
    parameters: {name: {type: string, description: name of the NOUN}}
"""

# %% draw
def draw(state, items, chance):
    state["above"] = [None, *(chance.randrange(place) for place in range(1, len(items)))]

# %% code
def top(state):
    return state["names"][0]
def below(state, name):
    here = _place(state, name)
    return [state["names"][place] for place, above in enumerate(state["above"]) if above == here]

# %% oracle
def _places(call, given):
    waiting = [call("top")]
    while waiting:
        name = waiting.pop()
        yield {"name": name}
        waiting += call("below", name=name)
