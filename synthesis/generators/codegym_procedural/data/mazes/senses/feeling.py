"""
tools:
  - name: go
    description: Goes one cell in a direction, if there is no wall; says what happened.
    parameters: {direction: {type: string, enum: [north, east, south, west]}}
"""

# %% code

def go(state, direction):
    cell = _beside(state, direction)
    state["at"] = cell or state["at"]
    return "there is a wall" if cell is None else "you went on"

# %% sensing
def sides():
    return ["east", "north", "south", "west"]
def go(way):
    return call("go", direction=way) == "you went on"
