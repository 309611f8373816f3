"""
about: The NOUNS are numbered from 0.
told: There are $count NOUNS.
where:
  number: {type: integer, description: number of the NOUN}
given:
  count: len(instance["items"])
"""

# %% code
def _place(state, number):
    if not 0 <= number < len(state["items"]):
        raise Refused(f"There is no NOUN {number}.")
    return number

# %% oracle
def _places(call, given):
    return [{"number": number} for number in range(given["count"])]
