"""
about: The NOUNS are spread over rooms, and each has a name.
named: true
ordered: false
tools:
  - name: rooms
    description: The names of the rooms.
  - name: inside
    description: The names of the NOUNS in a room.
    parameters: {room: {type: string}}
"""

# %% draw
def draw(state, items, chance):
    state["rooms"] = [chance.choice(["east", "west", "north"]) for _ in items]

# %% code
def rooms(state):
    return ["east", "north", "west"]
def inside(state, room):
    if room not in rooms(state):
        raise Refused(f"There is no room {room}.")
    return sorted(name for name, other in zip(state["names"], state["rooms"]) if other == room)

# %% oracle
def _places(call, given):
    for room in call("rooms"):
        yield from ({"name": name} for name in call("inside", room=room))
