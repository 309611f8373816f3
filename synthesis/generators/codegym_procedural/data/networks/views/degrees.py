"""
tools:
  - name: degree
    description: How many ways a stop has.
    parameters: {name: {type: string}}
  - name: follow
    description: Where a way of a stop leads, numbered from 0, and its length.
    parameters: {name: {type: string}, number: {type: integer}}
"""

# %% code

CHECK

def _ways(state, name):
    _check(state, name)
    return [[two if one == name else one, length] for one, two, length in state["ways"] if name in (one, two)]
def degree(state, name):
    return len(_ways(state, name))
def follow(state, name, number):
    if not 0 <= number < degree(state, name):
        raise Refused(f"{name} has no way {number}.")
    return _ways(state, name)[number]

# %% see
def see(call, names, ways):
    for name in names:
        for number in range(call("degree", name=name)):
            other, length = call("follow", name=name, number=number)
            ways += [[name, other, length]] if name < other else []
