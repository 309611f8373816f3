"""
about: Every NOUN has a name.
named: true
ordered: false
tools:
  - name: list_NOUNS
    description: The names of all NOUNS.
"""

# %% code
def list_NOUNS(state):
    return sorted(state["names"])

# %% oracle
def _places(call, given):
    return [{"name": name} for name in call("list_NOUNS")]
