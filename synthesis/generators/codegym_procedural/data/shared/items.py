"""
about: What the hidden things of a problem hold; each function returns an expression over chance and size.
"""

# %% some
def some(chance, size):
    return [chance.randint(1, 30) for _ in range(size + 1)]

# %% few
def few(chance, size):
    return [chance.randint(1, 6) for _ in range(size + 2)]

# %% wild
def wild(chance, size):
    return [3 * place + chance.randint(1, 25) for place in range(size + 2)]

# %% signed
def signed(chance, size):
    return [chance.randint(-9, 12) for _ in range(size + 2)]

# %% growing
def growing(chance, size):
    return [2 * place + chance.randint(1, 9) for place in range(size + 2)]

# %% spans
def spans(chance, size):
    return [[start, start + chance.randint(1, 9)] for start in chance.choices(range(1, 20), k=size + 1)]

# %% spread
def spread(chance, size):
    return [[start, start + chance.randint(1, 5)] for start in chance.choices(range(1, 50), k=size + 1)]

# %% goods
def goods(chance, size):
    return [[chance.randint(1, 9), chance.randint(1, 20)] for _ in range(min(size, 8) + 1)]

# %% payments
def payments(chance, size):
    return [[chance.choice(["Ada", "Ben", "Cem", "Dora"]), chance.randint(-9, 12)] for _ in range(size + 2)]

# %% points
def points(chance, size):
    return [[chance.randint(0, 9), chance.randint(0, 9)] for _ in range(size + 1)]

# %% words
def words(chance, size):
    return [chance.choice(["ten", "net", "stone", "notes", "onset", "level", "rotor", "lamp", "palm", "arm", "mar",
        "ram", "plan", "plane", "planet", "star", "start", "rats", "arts", "deed"]) for _ in range(size + 2)]

# %% bits
def bits(chance, size):
    return [chance.choice("ab") for _ in range(size + 6)]

# %% many
def many(chance, size):
    return [chance.choice("abcdefgh") for _ in range(size + 3)]

# %% letters
def letters(chance, size):
    return [chance.choice("abc") for _ in range(size + 3)]

# %% brackets
def brackets(chance, size):
    return [chance.choice("([])") for _ in range(size + 2)]

# %% at_most_seven
def at_most_seven(chance, size):
    return [chance.randint(1, 99) for _ in range(min(size, 6) + 1)]

# %% at_most_ten
def at_most_ten(chance, size):
    return [chance.randint(1, 30) for _ in range(min(size, 9) + 1)]

# %% multiples
def multiples(chance, size):
    return (lambda factor: [factor * chance.randint(1, 9) for _ in range(size + 1)])(chance.randint(2, 9))

# %% up_to_12
def up_to_12(chance, size):
    return [chance.randint(1, 12) for _ in range(min(size, 7) + 1)]

# %% ones_and_twos
def ones_and_twos(chance, size):
    return chance.choices((1, 2), weights=(4, 1), k=size + 3)
