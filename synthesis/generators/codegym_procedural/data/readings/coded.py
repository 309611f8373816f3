"""
about: On a NOUN stands a code word, and a book says what is held under which.
tools_where:
  - name: code_word
    description: The code word on a NOUN.
tools:
  - name: look_up
    description: What is held under a code word.
    parameters: {word: {type: string}}
"""

# %% draw
def draw(state, items, chance):
    known = [first + second for first in ("ba", "ko", "mi", "su", "te") for second in ("lar", "nem", "pid", "rus", "von")]
    state["words"] = chance.sample(known, len(items))

# %% code
def code_word(state, WHERE):
    return state["words"][_place(state, PASSED)]
def look_up(state, word):
    if word not in state["words"]:
        raise Refused(f"The book does not know {word}.")
    return state["items"][state["words"].index(word)]

# %% oracle
def _read(call, given, where):
    return call("look_up", word=call("code_word", **where))
