"""
tool:
  name: swap_with_next
  description: Swaps a NOUN with the one behind it.
  parameters: {number: {type: integer}}
"""

# %% code
def swap_with_next(state, number):
    _check(state, number, number + 1)
    row = state['items']
    row[number], row[number + 1] = row[number + 1], row[number]
    return 'swapped'

# %% plan
def plan(call, row, goal):
    for place in range(len(row)):
        for other in range(row.index(goal[place]) - 1, place - 1, -1):
            call('swap_with_next', number=other)
            row[other], row[other + 1] = row[other + 1], row[other]
