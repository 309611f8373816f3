"""
tool:
  name: swap
  description: Swaps two NOUNS.
  parameters: {first: {type: integer}, second: {type: integer}}
"""

# %% code
def swap(state, first, second):
    _check(state, first, second)
    row = state['items']
    row[first], row[second] = row[second], row[first]
    return 'swapped'

# %% plan
def plan(call, row, goal):
    for place in range(len(row)):
        other = row.index(goal[place])
        if other != place:
            call('swap', first=place, second=other)
            row[place], row[other] = row[other], row[place]
