"""
about: What a NOUN holds is its gross weight without its tare.
fits: [numbers, rows]
tools_where:
  - name: gross
    description: The gross weight of a NOUN.
  - name: tare
    description: The tare of a NOUN.
"""

# %% draw
def draw(state, items, chance):
    state["tare"] = [chance.randint(1, 9) for _ in items]

# %% code
def gross(state, WHERE):
    place = _place(state, PASSED)
    return state["items"][place] + state["tare"][place]
def tare(state, WHERE):
    return state["tare"][_place(state, PASSED)]

# %% oracle
def _read(call, given, where):
    return call("gross", **where) - call("tare", **where)
