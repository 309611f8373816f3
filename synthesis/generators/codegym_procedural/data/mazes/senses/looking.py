"""
tools:
  - name: open_sides
    description: The directions that are open from here.
  - name: go
    description: Goes one cell in a direction.
    parameters: {direction: {type: string, enum: [north, east, south, west]}}
"""

# %% code

def go(state, direction):
    cell = _beside(state, direction)
    if cell is None:
        raise Refused("There is a wall.")
    state["at"] = cell
    return "you went on"
def open_sides(state):
    return [way for way in sorted(_MOVES) if _beside(state, way)]

# %% sensing
def sides():
    return call("open_sides")
def go(way):
    call("go", direction=way)
    return True
