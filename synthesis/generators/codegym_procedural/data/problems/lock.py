"""
about: You work PLACE. A lock hides a word of LETTERS letters, each of them a, b, c or d.
question: Which word does the lock hide?
tools:
  - name: try_word
    description: TOLD
    parameters: {guess: {type: string, minLength: LETTERS, maxLength: LETTERS}}
answer: {type: string}
"""

# %% instances
def draw(chance, size):
    return {'code': ''.join(chance.choice('abcd') for _ in range(LETTERS))}
def given(instance):
    return {}

# %% code
def try_word(state, guess):
    if len(guess) != LETTERS or set(guess) - set('abcd'):
        raise Refused('That is no such word.')
    code = state['code']
    return FEEDBACK

# %% solution
def solve(instance):
    return instance['code']

# %% oracle
import itertools
def _told(code, guess):
    return FEEDBACK
def oracle(call, given):
    left = [''.join(word) for word in itertools.product('abcd', repeat=LETTERS)]
    while len(left) > 1:
        guess = left[len(left) // 2]
        said = call('try_word', guess=guess)
        left = [code for code in left if _told(code, guess) == said]
    return left[0]
