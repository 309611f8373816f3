"""
tools:
  - name: way_between
    description: The length of the way between two stops; null if there is none.
    parameters: {first: {type: string}, second: {type: string}}
"""

# %% code

CHECK

def way_between(state, first, second):
    _check(state, first, second)
    return next((length for *ends, length in state["ways"] if {first, second} == set(ends)), None)

# %% see
def see(call, names, ways):
    for place, first in enumerate(names):
        for second in names[:place]:
            length = call("way_between", first=first, second=second)
            ways += [[first, second, length]] if length is not None else []
