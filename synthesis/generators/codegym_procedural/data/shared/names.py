"""
where:
  name: {type: string, description: name of the NOUN}
"""

# %% draw
def draw(state, items, chance):
    state["names"] = [f"{letter}{number}" for letter, number in
        zip(chance.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=len(items)), chance.sample(range(10, 100), len(items)))]

# %% code
def _place(state, name):
    if name not in state["names"]:
        raise Refused(f"There is no NOUN {name}.")
    return state["names"].index(name)
