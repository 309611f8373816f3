"""
about: You work PLACE. You plan ways between stops; they can be gone in both directions.
question: 'There are these stops: $names. ASK'
tools: TOOLS
answer: ANSWER
"""

# %% instances
def draw(chance, size):
    n = min(size, 7) + 1
    names = [f"{letter}{chance.randint(1, 9)}" for letter in chance.sample("ABCDEFGHKLMN", n)]
    pairs = [(one, two) for two in range(n) for one in range(two)]
    chosen = sorted(chance.sample(pairs, min(len(pairs), chance.randint(n // 2, n + 1))))
    state = {"names": names, "ways": [[names[one], names[two], chance.randint(1, 9)] for one, two in chosen]}
    DRAW
    EXTRA
    return state
def given(instance):
    return {GIVEN}

# %% code
VIEW

# %% solution
def solve(instance):
    LOOKED
    SOLVE

# %% oracle
def oracle(call, given):
    KNOWN
    ways = []
    SEE
    CHECK
