"""Tables as text: whole in a pipe, within the width of a terminal, and nothing of a cell lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from agentmill.pipelines.terminal.console import GAP, folded, laid_out

HEAD = ["split", "tasks", "tokens per success"]
ROWS = [["held_out_environments", "1,200", "12,345"], ["train", "3", "-"]]
RIGHT = [False, True, True]


def test_without_a_width_nothing_is_folded_and_numbers_stand_right() -> None:
    assert laid_out(HEAD, ROWS, RIGHT, None) == [
        "  split                  tasks  tokens per success",
        "  ---------------------  -----  ------------------",
        "  held_out_environments  1,200              12,345",
        "  train                      3                   -",
    ]


def test_heads_are_folded_before_texts_and_numbers_never() -> None:
    assert laid_out(HEAD, ROWS, RIGHT, 40)[:2] == [
        "  split                  tasks    tokens",
        "                                     per",
    ]
    assert laid_out(HEAD, ROWS, RIGHT, 30)[4:] == [
        "  held_out_     1,200   12,345",
        "  environments",
        "  train             3        -",
    ]


def test_where_columns_would_get_too_narrow_each_row_is_a_block() -> None:
    assert laid_out(HEAD, ROWS, RIGHT, 22)[:5] == [
        "  split               held_",
        "                      out_",
        "                      environ",
        "                      ments",
        "  tasks               1,200",
    ]


def test_a_table_without_rows_is_its_head() -> None:
    assert laid_out(["a", "b"], [], [False, False], 40) == ["  a  b", "  -  -"]


CELLS = st.text("ab1é大_/- ", max_size=40)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4), st.integers(40, 100))
def test_no_line_is_too_wide_and_no_character_is_lost(rows: list[tuple[str, str, str]], room: int) -> None:
    lines = laid_out(["one", "two", "three"], rows, [False] * 3, room)
    assert max(map(cell_len, lines)) <= room
    kept = sorted("".join("".join(lines[2:]).split()))
    assert kept == sorted("".join("".join(cell for row in rows for cell in row).split()))


@settings(max_examples=30, deadline=None)
@given(CELLS, st.integers(GAP, 30))
def test_a_folded_text_is_the_text(text: str, width: int) -> None:
    lines = folded(text, width)
    assert max(map(cell_len, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())
