"""
tool:
  name: to_the_end
  description: Takes out a NOUN and puts it at the end.
  parameters: {number: {type: integer}}
"""

# %% code
def to_the_end(state, number):
    _check(state, number)
    state['items'].append(state['items'].pop(number))
    return 'moved'

# %% plan
def plan(call, row, goal):
    start = 0
    for item in row:
        start += start < len(goal) and item == goal[start]
    for item in goal[start:]:
        call('to_the_end', number=row.index(item))
        row.remove(item)
        row.append(item)
