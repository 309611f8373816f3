"""
about: You work PLACE. You have a pair of scales. The NOUNS are numbered from 0. One is heavier than all others,
  which weigh the same.
question: Which number has the one of the $count NOUNS that is heavier?
tools:
  - name: weigh
    description: 'Puts NOUNS, as many on each side, on the scales; says which side is heavier: left, right or none.'
    parameters: {left: {type: array, items: {type: integer}}, right: {type: array, items: {type: integer}}}
answer: {type: integer}
metered: [weigh]
"""

# %% instances
def draw(chance, size):
    count = 2 * size + 1
    odd = chance.randrange(count)
    return {'weights': [10 + (place == odd) for place in range(count)]}
def given(instance):
    return {'count': len(instance['weights'])}

# %% code

def weigh(state, left, right):
    both = [*left, *right]
    if len(left) != len(right) or len(set(both)) != len(both):
        raise Refused("There must be as many on each side, and none twice.")
    if not all(0 <= place < len(state["weights"]) for place in both):
        raise Refused("There is no such NOUN.")
    one, two = (sum(state["weights"][place] for place in side) for side in (left, right))
    return "left" if one > two else "right" if two > one else "none"

# %% solution
def solve(instance):
    return instance['weights'].index(max(instance['weights']))

# %% oracle

def oracle(call, given):
    left = list(range(given["count"]))
    while len(left) > 1:
        third = (len(left) + 1) // 3
        one, two, rest = left[:third], left[third : 2 * third], left[2 * third :]
        said = call("weigh", left=one, right=two)
        left = one if said == "left" else two if said == "right" else rest
    return left[0]
