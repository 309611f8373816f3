"""
about: What tools on a row of things share.
"""

# %% check
def _check(state, *numbers):
    for number in numbers:
        if not 0 <= number < len(state["items"]):
            raise Refused(f"There is no NOUN {number}.")
