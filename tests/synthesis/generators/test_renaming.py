"""Renaming: words map one to one with their forms, and no name that may be chosen means something else already."""

from __future__ import annotations

import ast
import re
import sqlite3
from importlib import import_module
from pathlib import Path

import pytest

from agentmill.schemas.records.task import Lineage
from agentmill.synthesis.environments.pddl.lint import lint_domain
from agentmill.synthesis.environments.toolbox.database import FUNCTIONS
from agentmill.synthesis.environments.toolbox.structure import SQL_WORDS
from agentmill.synthesis.generators.renaming.lexicon import all_invented, article, base_of, forms, lexicon
from agentmill.synthesis.generators.renaming.renaming import (
    NOTE,
    Renaming,
    action_words,
    chosen,
    renaming_of,
    words_of,
)

FAMILIES = ("pddl", "toolbox")
NO_SENTENCES = ("database", "examples", "lint", "reader", "structure", "template")
"""Modules whose texts no agent reads: code, examples, faults for authors; and verbs that only templates bring in."""
LIBRARY = Renaming({"lend": "advance", "book": "volume", "member": "associate"}, {"a": "slot"})


def own_words(family: str) -> set[str]:
    """The words of a family's sentences: of the texts in its modules, but for documentation and what is data."""
    package = import_module(f"agentmill.synthesis.environments.{family}")
    found: set[str] = set()
    for path in Path(str(package.__file__)).parent.glob("*.py"):
        if path.stem in NO_SENTENCES:
            continue
        tree = ast.parse(path.read_text())
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation]
        found |= {word for node in texts for word in re.findall(r"[a-z]+", str(node.value).lower())}
    return found


def replacements() -> set[str]:
    """Every English word that may replace a name."""
    return {word for words in lexicon().synonyms.values() for word in words} | {*lexicon().neutral}


def test_replacements_are_single_regular_words_that_say_nothing_else() -> None:
    assert [word for word in sorted(replacements()) if not re.fullmatch("[a-z]{2,}", word)] == []
    assert sorted(replacements() & {*lexicon().irregular}) == []
    assert sorted(replacements() & lexicon().kept) == []
    assert [word for word in sorted(replacements()) if len(set(forms(word))) < 4] == []
    assert len({*lexicon().neutral}) == len(lexicon().neutral) >= 60


@pytest.mark.parametrize("family", FAMILIES)
def test_replacements_are_in_no_sentence_of_a_family(family: str) -> None:
    own = own_words(family)
    assert len(own) > 50
    assert {word: found for word in sorted(replacements()) if (found := {*forms(word)} & own)} == {}


def test_replacements_are_no_words_of_sql_or_pddl() -> None:
    names = sorted(replacements()) + sorted(all_invented())
    assert {*names} & (SQL_WORDS | FUNCTIONS) == set()
    connection = sqlite3.connect(":memory:")
    for start in range(0, len(names), 500):
        columns = ", ".join(f"{name} TEXT" for name in names[start : start + 500])
        connection.execute(f"CREATE TABLE t{start} ({columns})")
    connection.close()
    for word in sorted(replacements()):
        lint_domain(
            f"(define (domain d) (:requirements :strips :typing) (:types {word}) (:predicates ({word} ?x - {word}))"
            f" (:action {word} :parameters (?{word} - {word}) :effect (and ({word} ?{word}))))"
        )


def test_invented_words_are_no_english_of_ours() -> None:
    english = replacements() | {*lexicon().bases} | lexicon().kept
    assert not english & {form for word in all_invented() for form in forms(word)}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lend", ("lend", "lends", "lent", "lending")),
        ("copy", ("copy", "copies", "copied", "copying")),
        ("drop", ("drop", "drops", "dropped", "dropping")),
        ("box", ("box", "boxes", "boxed", "boxing")),
        ("raise", ("raise", "raises", "raised", "raising")),
        ("enjoy", ("enjoy", "enjoys", "enjoyed", "enjoying")),
        ("gatav", ("gatav", "gatavs", "gataved", "gataving")),
    ],
)
def test_forms_of_a_word(word: str, expected: tuple[str, ...]) -> None:
    assert forms(word) == expected


@pytest.mark.parametrize(
    ("word", "base"),
    [
        ("lent", "lend"),
        ("members", "member"),
        ("status", "status"),
        ("widgets", "widget"),
        ("bureaus", "bureaus"),
        ("glosses", "gloss"),
        ("fairies", "fairy"),
        ("mazes", "maze"),
        ("as", "as"),
    ],
)
def test_base_of_a_word(word: str, base: str) -> None:
    assert base_of(word) == base


def test_articles() -> None:
    assert [article(word) for word in ("Oven", "unit", "user", "umbrella", "book")] == ["an", "a", "a", "an", "a"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lend_book", "advance_volume"),
        ("Lends a copy of a book to a member.", "Advances a copy of a volume to an associate."),
        ("BOOKS lent; a Book", "VOLUMES advanced; a Volume"),
        ("{book_id} books.book_id book3", "{volume_id} volumes.volume_id volume3"),
        ("A member has it. Ward A member", "An associate has it. Ward A associate"),
        ("bookshop notebook", "bookshop notebook"),
        ("a", "a"),
        ("", ""),
    ],
)
def test_texts_are_mapped_word_by_word_and_back(old: str, new: str) -> None:
    assert LIBRARY.text(old) == new
    assert LIBRARY.inverse().text(new) == old


def test_identifiers_are_mapped_as_names_only() -> None:
    assert (LIBRARY.name("a"), LIBRARY.text("a"), LIBRARY.name("book-x")) == ("slot", "a", "volume-x")
    assert LIBRARY.inverse().name("slot") == "a"
    assert LIBRARY.value({"book": ["member", 3, None]}) == {"volume": ["associate", 3, None]}


def test_which_words_are_names() -> None:
    assert words_of(["put_down", "find_member2", "b1 a", "x", "The Long Winter"]) == {
        "find",
        "member",
        "b",
        "Long",
        "Winter",
    }
    assert action_words(["lend_book", "book", "put_down"], {"book"}) == {"lend", "book"}


@pytest.mark.parametrize("style", ["words", "symbols"])
def test_a_choice_is_bijective_seeded_and_avoids_the_words_that_are_there(style: str) -> None:
    words = {"book", "books", "member", "find", "locate", "Oslo", "frobnicate", "b"}
    texts = ["a volume", "the members"]
    made = {seed: chosen(words, style, texts, seed, identifiers=["a", "to"]) for seed in range(20)}  # type: ignore[arg-type]
    for seed, renaming in made.items():
        assert {*renaming.words} == {"book", "member", "find", "locate", "oslo", "frobnicate", "b"}
        new = [*renaming.words.values(), *renaming.identifiers.values()]
        assert len({*new}) == len(new)
        old_forms = {form for word in renaming.words for form in forms(word)}
        new_forms = [form for word in new for form in forms(word)]
        assert len({*new_forms}) == len(new_forms)
        assert not {*new_forms} & (old_forms | {"volume", "the", "a"})
        again = chosen(sorted(words, reverse=True), style, texts, seed, identifiers=["to", "a"])  # type: ignore[arg-type]
        assert again == renaming
    assert len({renaming.words["member"] for renaming in made.values()}) > 1
    assert len({str(renaming) for renaming in made.values()}) == 20


def test_words_without_a_synonym_get_plain_words_and_proper_names_invented_ones() -> None:
    renaming = chosen({"frobnicate", "Ida"}, "words", [], 0)
    assert renaming.words["frobnicate"] in lexicon().neutral
    assert renaming.words["ida"] in {*all_invented()}
    many = chosen({f"q{letter}{other}" for letter in "abcdefghijk" for other in "abcdefghijk"}, "words", [], 0)
    assert len({*many.words.values()}) == 121
    assert {*lexicon().neutral} < {*many.words.values()}


def test_there_is_no_end_of_names() -> None:
    words = {
        f"q{one}{two}{three}{four}"
        for one in "abcdefghij"
        for two in "klmnopqrst"
        for three in "abcdefghij"
        for four in "klmnopqrst"
    }
    new = chosen(words, "symbols", [], 0).words
    assert len({*new.values()}) == len(new) == 10_000


def test_symbols_say_nothing() -> None:
    assert {*chosen({"book", "find", "Ida"}, "symbols", [], 3).words.values()} <= {*all_invented()}


def test_a_choice_can_be_extended() -> None:
    base = chosen({"book"}, "words", [], 0)
    more = chosen({"books", "crate"}, "words", [], 0, base=base)
    assert more.words["book"] == base.words["book"]
    assert {*more.words} == {"book", "crate"}


def test_what_keeps_its_name_is_noted() -> None:
    renaming = LIBRARY.with_kept(["lend_book", "put_down", "a", "7"])
    assert renaming.kept == ("put_down",)
    assert renaming_of(Lineage(operator="o", notes={NOTE: renaming.note()})) == renaming
    assert renaming_of(None) == renaming_of(Lineage(operator="o")) == Renaming()
