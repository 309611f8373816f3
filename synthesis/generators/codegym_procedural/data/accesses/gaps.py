"""
about: The NOUNS have numbers above 0 in rising order, but not every number is in use.
where:
  number: {type: integer, description: number of the NOUN}
tools:
  - name: next_number
    description: The lowest number in use above another; null if there is none.
    parameters: {number: {type: integer, description: number of the NOUN}}
"""

# %% draw
def draw(state, items, chance):
    state["numbers"] = sorted(chance.sample(range(1, 100), len(items)))

# %% code
def _place(state, number):
    if number not in state["numbers"]:
        raise Refused(f"There is no NOUN {number}.")
    return state["numbers"].index(number)
def next_number(state, number):
    return min((other for other in state["numbers"] if other > number), default=None)

# %% oracle
def _places(call, given):
    number = 0
    while (number := call("next_number", number=number)) is not None:
        yield {"number": number}
