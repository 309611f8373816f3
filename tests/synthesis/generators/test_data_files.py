"""Data files of generators: YAML tables and code templates."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
import pytest

from agentmill.schemas.errors import UserError
from agentmill.synthesis.generators import data_files
from agentmill.synthesis.generators.data_files import convert, fill, parse_template, read_folder, read_named

TEMPLATE = '''"""
ask: How many?
"""

# %% solve
def solve(items):
    one = 1

    return one

# %% check

# %% code

def code():
    pass


'''


class AnnotationNeed(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    ask: str
    solve: str
    check: str = ""
    code: str = ""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a package ``p``."""

    def folder(_: str) -> Traversable:
        return tmp_path

    monkeypatch.setattr(data_files, "data_folder", folder)
    data_files.read_table.cache_clear()
    data_files.read_template.cache_clear()
    return tmp_path


def test_a_template_is_its_head_and_its_cells() -> None:
    asked = parse_template(TEMPLATE, "t.py").as_type(AnnotationNeed, ("solve",), name="n")
    assert asked.ask == "How many?"
    assert asked.solve == "one = 1\n\nreturn one\n"
    assert asked.code == "\ndef code():\n    pass\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ask:", "asks:", "t.py: Object contains unknown field `asks`"),
        ("How many?", "[1]", "t.py: Expected `str`, got `array` - at `$.ask`"),
        ("%% code", "%% codes", "t.py: Object contains unknown field `codes`"),
        ("%% solve", "%% ask", "t.py: ask is both a key of the head and a cell; keep one"),
        ("%% code", "%% solve", "t.py: expected cells of different names, got solve, check, solve"),
        ("# %% solve", "", "t.py: expected a line '# %% NAME' before 'def'"),
        ("How many?", "How many?\nask: twice", "t.py, head, line 3: the key 'ask' is given twice"),
        ('"""', "", "t.py: expected a docstring with YAML at the beginning"),
    ],
)
def test_a_mistake_in_a_template_names_file_and_key(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_template(TEMPLATE.replace(old, new, 1), "t.py").as_type(AnnotationNeed, ("solve",), name="n")
    assert str(error.value) == message


def test_a_mistake_in_a_table_names_file_and_entry(package: Path) -> None:
    (package / "asked.yaml").write_text("one: {ask: How?, solve: s}\nother: {ask: Why?, solved: s}\n")
    with pytest.raises(UserError, match=r"^p/data/asked.yaml, other: Object contains unknown field `solved`$"):
        read_named("p", "asked.yaml", AnnotationNeed)
    with pytest.raises(UserError, match=r"^o: Expected `int`, got `str` - at `\$\[1\]`$"):
        convert([1, "2"], list[int], "o")


def test_the_catalogue_gives_the_order_of_a_folder_and_lists_all_of_it(package: Path) -> None:
    (package / "catalogue.yaml").write_text("asked: [b, a]\n")
    (package / "asked").mkdir()
    for name in "ab":
        (package / f"asked/{name}.py").write_text(TEMPLATE)
    assert list(read_folder("p", "asked")) == ["b", "a"]
    (package / "asked/c.py").write_text(TEMPLATE)
    with pytest.raises(UserError, match=r"^p/data/catalogue.yaml: asked and its files differ in c.py$"):
        read_folder("p", "asked")


def test_placeholders_in_a_line_of_their_own_stand_for_lines() -> None:
    text = "def f(NAMES):\n    FIRST\n    NONE\n    return NAMES\n"
    values = {"NAMES": "a, b", "FIRST": "\nif a:\n    b = 1\n", "NONE": ""}
    assert fill(text, values) == "def f(a, b):\n\n    if a:\n        b = 1\n    return a, b\n"


def test_placeholders_are_whole_words_and_their_values_are_not_filled() -> None:
    assert fill("A BA A_B [A]", {"A": "B", "B": 2}) == "B BA A_B [B]"
