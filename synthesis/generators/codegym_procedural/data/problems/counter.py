"""
about: You work PLACE. A machine shows a number, and has buttons that change it. It stays between -99 and 999.
question: Make the machine show $goal, and say that it is done.
tools: TOOLS
"""

# %% instances
def draw(chance, size):
    start = value = chance.randint(2, 30)
    for number in range(60):
        choices = [each for each in AFTER.values() if -99 <= each <= 999 and each != start]
        value = chance.choice(choices) if choices else value
        if number >= size and value != start:
            break
    return {'value': start, 'goal': value}
def given(instance):
    return {'goal': instance['goal']}

# %% code
def show(state):
    return state['value']
OPERATIONS
def outcome(state):
    return state['value']

# %% solution
def solve(instance):
    return instance['goal']

# %% oracle
def oracle(call, given):
    start = call('show')
    plans, ring = {start: []}, [start]
    for value in ring:
        if value == given['goal']:
            break
        for name, changed in AFTER.items():
            if changed not in plans and -99 <= changed <= 999:
                plans[changed] = [*plans[value], name]
                ring.append(changed)
    for name in plans[given['goal']]:
        call(name)
