"""
about: Parts of questions about networks; LENGTH is what a way counts.
"""

# %% check
def _check(state, *names):
    for name in names:
        if name not in state["names"]:
            raise Refused(f"There is no stop {name}.")

# %% beside
beside = {name: {} for name in names}
for one, two, length in ways:
    beside[one][two] = beside[two][one] = length

# %% steps
BESIDE

def steps(start):
    found, ring = {start: 0}, [start]
    while ring:
        ring = sorted({other for name in ring for other in beside[name]} - set(found))
        found.update({name: max(found.values()) + 1 for name in ring})
    return found

# %% dijkstra
BESIDE

def lengths(start):
    done, open_ = {}, {start: 0}
    while open_:
        name = min(open_, key=lambda each: (open_[each], each))
        done[name] = open_.pop(name)
        for other, length in beside[name].items():
            if other not in done:
                open_[other] = min(open_.get(other, 999), done[name] + length)
    return done

# %% floyd
far = {(one, two): 0 if one == two else 999 for one in names for two in names}
for one, two, length in ways:
    far[one, two] = far[two, one] = LENGTH
for via in names:
    for one in names:
        for two in names:
            far[one, two] = min(far[one, two], far[one, via] + far[via, two])
