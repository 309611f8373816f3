"""
tools:
  - name: ways_from
    description: 'The ways from a stop: where each leads, and its length.'
    parameters: {name: {type: string}}
"""

# %% code

CHECK

def ways_from(state, name):
    _check(state, name)
    return [[two if one == name else one, length] for one, two, length in state["ways"] if name in (one, two)]

# %% see
def see(call, names, ways):
    for name in names:
        ways += [[name, other, length] for other, length in call("ways_from", name=name) if name < other]
