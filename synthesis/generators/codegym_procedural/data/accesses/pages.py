"""
about: The NOUNS are in a register of pages that are numbered from 0, in order.
named: true
tools:
  - name: page
    description: The names on a page; none after the last page.
    parameters: {number: {type: integer}}
"""

# %% draw
def draw(state, items, chance):
    state["per_page"] = chance.randint(2, 4)

# %% code
def page(state, number):
    if number < 0:
        raise Refused(f"There is no page {number}.")
    return state["names"][number * state["per_page"] : (number + 1) * state["per_page"]]

# %% oracle
def _places(call, given):
    number = 0
    while names := call("page", number=number):
        yield from ({"name": name} for name in names)
        number += 1
