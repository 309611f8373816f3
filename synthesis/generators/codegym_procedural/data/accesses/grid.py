"""
about: The NOUNS are in rows and columns, both numbered from 0; read row by row, as one long row.
told: There are $rows rows and $columns columns.
where:
  row: {type: integer}
  column: {type: integer}
given:
  rows: len(instance["items"]) // instance["columns"]
  columns: instance["columns"]
"""

# %% draw
def draw(state, items, chance):
    columns = state["columns"] = chance.randint(2, 3) if len(items) > 2 else 2
    del items[len(items) // columns * columns :]

# %% code
def _place(state, row, column):
    if not 0 <= column < state["columns"] or not 0 <= row < len(state["items"]) // state["columns"]:
        raise Refused(f"There is no NOUN in row {row}, column {column}.")
    return row * state["columns"] + column

# %% oracle
def _places(call, given):
    return [{"row": row, "column": column} for row in range(given["rows"]) for column in range(given["columns"])]
