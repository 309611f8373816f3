"""
ask: Ways may be given up as long as all stops that can be reached from each other still can. How long are the ways
  that are kept together at least?
"""

# %% solve
def solve(names, ways):
    part, total = {name: name for name in names}, 0
    for one, two, length in sorted(ways, key=lambda way: way[2]):
        old, new = part[one], part[two]
        if old != new:
            total += length
            part = {name: new if each == old else each for name, each in part.items()}
    return total

# %% check
def check(names, ways):
    BESIDE
    left, total = set(names), 0
    while left:
        tree = {min(left)}
        while True:
            cuts = [(length, other) for name in tree for other, length in beside[name].items() if other not in tree]
            if not cuts:
                break
            total += min(cuts)[0]
            tree.add(min(cuts)[1])
        left -= tree
    return total
