"""
tool:
  name: flip
  description: Turns the order of the first NOUNS around, as many as are said.
  parameters: {count: {type: integer}}
"""

# %% code
def flip(state, count):
    if not 0 < count <= len(state['items']):
        raise Refused('There are not so many NOUNS.')
    state['items'][:count] = state['items'][:count][::-1]
    return 'flipped'

# %% plan
def plan(call, row, goal):
    for place in range(len(row) - 1, 0, -1):
        other = row.index(goal[place])
        if other == place:
            continue
        for count in ([other + 1] if other else []) + [place + 1]:
            call('flip', count=count)
            row[:count] = row[:count][::-1]
