"""
tool:
  name: move
  description: Takes out a NOUN and puts it back at a place.
  parameters: {number: {type: integer}, place: {type: integer}}
"""

# %% code
def move(state, number, place):
    _check(state, number, place)
    state['items'].insert(place, state['items'].pop(number))
    return 'moved'

# %% plan
def plan(call, row, goal):
    for place in range(len(row)):
        other = row.index(goal[place])
        if other != place:
            call('move', number=other, place=place)
            row.insert(place, row.pop(other))
