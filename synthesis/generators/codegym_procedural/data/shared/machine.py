"""
about: One button of a machine.
"""

# %% operation
def NAME(state):
    value = state['value']
    changed = CHANGED
    if not -99 <= changed <= 999:
        raise Refused('The number would leave the display.')
    state['value'] = changed
    return 'done'
