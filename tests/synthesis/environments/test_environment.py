"""Commands and templates."""

from __future__ import annotations

import pytest

from agentmill.synthesis.environments.environment import tidy
from agentmill.synthesis.environments.pddl.template import Template, negated


@pytest.mark.parametrize(
    "text",
    [
        "go to dock",
        " go  to\tdock\n",
        "go to dock.",
        "`go to dock`",
        '"go to dock."',
        "'go to dock'.",
        "**go to dock**!",
    ],
)
def test_what_wraps_a_command_does_not_count(text: str) -> None:
    assert tidy(text) == "go to dock"


@pytest.mark.parametrize("text", ["", "  ", "''", ".", "`"])
def test_tidying_nothing_is_harmless(text: str) -> None:
    assert tidy(text) in ("", "`", "'")


def test_a_template_reads_what_it_fills() -> None:
    template = Template("put {1} (heavy) on {0}", 2)
    assert template.fill(["Table-2", "crate_1"]) == "put crate_1 (heavy) on Table-2"
    assert template.match("Put CRATE_1 (heavy) on table-2") == ("table-2", "crate_1")
    assert template.match("put crate 1 (heavy) on table") is None
    assert template.match("put crate1 heavy on table") is None
    assert template.match("put crate1 (heavy) on table now") is None


def test_a_place_that_comes_twice_must_hold_the_same_word() -> None:
    template = Template("swap {0} for {1}, not {0}", 2)
    assert template.match("swap a for b, not a") == ("a", "b")
    assert template.match("swap a for b, not b") is None


@pytest.mark.parametrize(("text", "expected"), [("go {1}", r"place \{1\}"), ("go {x}", "braces"), ("go {0", "braces")])
def test_a_broken_template_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Template(text, 1)


@pytest.mark.parametrize(
    ("sentence", "denied"),
    [
        ("the box is open", "the box is not open"),
        ("a and b are linked", "a and b are not linked"),
        ("you hold the key", "you do not hold the key"),
        ("ann has a key", "ann does not have a key"),
        ("a road leads to b", "a road does not lead to b"),
        ("the box that was red is open", "the box that was not red is open"),
        ("birds sing", "it is not so that birds sing"),
    ],
)
def test_sentences_are_denied(sentence: str, denied: str) -> None:
    assert negated(sentence) == denied
