"""
ask: How many ways are there without which some stop could no longer be reached from some other?
"""

# %% solve
def solve(names, ways):
    def parts(kept):
        part = {name: name for name in names}
        for one, two, _ in kept:
            old, new = part[one], part[two]
            part = {name: new if each == old else each for name, each in part.items()}
        return len(set(part.values()))
    return sum(parts([way for way in ways if way != gone]) > parts(ways) for gone in ways)

# %% check
def check(names, ways):
    BESIDE
    def reaches(one, two):
        found, waiting = {one}, [one]
        while waiting:
            name = waiting.pop()
            for other in beside[name]:
                if other not in found and {name, other} != {one, two}:
                    found.add(other)
                    waiting.append(other)
        return two in found
    return sum(not reaches(one, two) for one, two, _ in ways)
