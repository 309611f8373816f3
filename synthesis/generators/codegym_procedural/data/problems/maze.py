"""
about: You work PLACE. You are in a maze of square cells. North is up.
question: ASK
tools: TOOLS
answer: ANSWER
"""

# %% instances

def draw(chance, size):
    high, wide = 2 + size // 5, 2 + (size + 2) // 5
    cells = [[row, column] for row in range(high) for column in range(wide)]
    here = chance.choice(cells)
    joined, seen = [], [here]
    while len(seen) < len(cells):
        one = chance.choice(seen)
        near = [cell for cell in cells if abs(cell[0] - one[0]) + abs(cell[1] - one[1]) == 1 and cell not in seen]
        if near:
            two = chance.choice(near)
            seen.append(two)
            joined.append(sorted([one, two]))
    exit_ = chance.choice([cell for cell in cells if cell != here])
    return {"at": here, "joined": joined, "exit": exit_, "coins": chance.sample(cells, size // 3 + 1)}
def given(instance):
    return {}

# %% code

_MOVES = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
def _beside(state, direction):
    row, column = state["at"]
    cell = [row + _MOVES[direction][0], column + _MOVES[direction][1]]
    return cell if sorted([state["at"], cell]) in state["joined"] else None
SENSE
QUEST

# %% solution
SOLUTION

# %% oracle
def oracle(call, given):
    SENSING
    VISIT

    moves = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    seen = {(0, 0)}
    def explore(row, column):
        if visit():
            return True
        for way in sides():
            cell = row + moves[way][0], column + moves[way][1]
            if cell not in seen and go(way):
                seen.add(cell)
                if explore(*cell):
                    return True
                go(back[way])
        return False
    explore(0, 0)
    ANSWERED
