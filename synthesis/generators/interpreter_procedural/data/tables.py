"""
rules: >-
  tables() names the tables and their fields. page(table, number) gives PAGE_SIZE rows as dicts, from page 0 on, and
  an empty list after the last page. The field LINK of table TABLE names a row of table OTHER.
"""

# %% source
def tables():
    """The names of the tables, and the fields of their rows."""
    return {name: list(rows[0]) for name, rows in _tables.items()}

def page(table, number):
    """Rows of a table, PAGE_SIZE at a time, from page 0 on; none after the last."""
    return [dict(row) for row in _tables[table][PAGE_SIZE * number : PAGE_SIZE * (number + 1)]]
