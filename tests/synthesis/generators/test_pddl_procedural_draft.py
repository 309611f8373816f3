"""The notation in which features write worlds, and the words they are told in."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from agentmill.synthesis.environments.pddl.domain import Literal, Typed
from agentmill.synthesis.generators.pddl_procedural.draft import Draft
from agentmill.synthesis.generators.pddl_procedural.features import stand, verbs
from agentmill.synthesis.generators.pddl_procedural.generator import compose
from agentmill.synthesis.generators.pddl_procedural.themes import Theme, plural, proper_nouns, themes
from agentmill.synthesis.generators.procedural import choose_theme, matches

ROLES = ("place", "item", "vehicle", "tool", "station", "device", "piece", "job", "box", "token", *proper_nouns())
THEMES = themes()
KITCHEN = THEMES[0]


def drafted() -> Draft:
    draft = Draft(KITCHEN)
    draft.kind("place", 2, 3)
    draft.kind("item", 1, 2)
    draft.predicate("at item place", "the {0} is <in> the {1}", goal=2)
    return draft


def keywords(theme: Theme) -> Iterable[str]:
    return theme.keywords


def test_action_reads_from_the_short_notation() -> None:
    draft = drafted()
    draft.action(
        "move",
        "item from:place to:place",
        "at item from, not at item to",
        "at item to",
        "move {item} to {to} from {from}",
    )
    action = draft.domain("d").actions[0]
    assert action.parameters == (Typed("?item", "dish"), Typed("?from", "room"), Typed("?to", "room"))
    assert action.precondition == (Literal("at", ("?item", "?from")), Literal("at", ("?item", "?to"), False))
    assert draft.action_text() == {"move": "move {0} to {2} from {1}"}
    assert draft.predicate_text == {"at": "the {0} is in the {1}"}
    assert draft.goals == {"at": 2}


def test_extension_adds_conditions_parameters_and_text() -> None:
    draft = drafted()
    draft.kind("token", 1, 1)
    draft.predicate("have token", "you have {0}")
    move = draft.action("move", "item to:place", "", "at item to", "move {item} to {to}")
    draft.extend(move, "have token", "not have token", "token", " using {token}")
    assert draft.action_text()["move"] == "move {0} to {1} using {2}"
    assert draft.domain("d").actions[0].effect[-1] == Literal("have", ("?token",), False)


def test_words_follow_the_theme_with_the_right_article() -> None:
    draft = Draft(next(theme for theme in THEMES if theme.name == "mine"))
    draft.kind("item", 1, 1)
    assert draft.words("A <item> lies <in> a <place>; <items> differ.") == "An ore lies in a tunnel; ores differ."
    assert [plural(noun) for noun in ("box", "supply", "day", "dish")] == ["boxes", "supplies", "days", "dishes"]


def test_taken_names_are_refused() -> None:
    draft = drafted()
    draft.action("move", "item", "", "at item item", "move {item}")
    with pytest.raises(ValueError, match="two actions 'move'"):
        draft.action("move", "item", "", "at item item", "move {item}")
    with pytest.raises(ValueError, match="two predicates 'at'"):
        draft.predicate("at item", "the {0} is there")


def test_verbs_skip_the_one_who_is_told_to_act() -> None:
    draft = drafted()
    draft.kind("worker", 1, 1)
    asked = draft.action("sew", "worker item", "", "at item item", "let {worker} sew {item}")
    own = draft.action("take", "item", "", "at item item", "take {item}")
    assert verbs([asked, own]) == "sew or take"
    draft.mover = "worker"
    assert stand(draft, "place") == ("worker ", "parked worker place, ", "let {worker} ")


def test_theme_is_chosen_by_keywords() -> None:
    assert choose_theme(THEMES, keywords, "Book a flight to another city", random.Random(0)).name == "airport"
    assert matches("Two planes landing by sea", ["plane", "land", "sea", "train"]) == 3
    assert matches("Search carefully", ["sea", "car"]) == 0
    assert len({choose_theme(THEMES, keywords, "", random.Random(seed)).name for seed in range(100)}) > 10


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_no_word_of_a_theme_has_two_meanings(theme: object) -> None:
    chosen = next(each for each in THEMES if each is theme)
    words = [chosen.kind(role) for role in ROLES] + [name for role in ROLES for name in chosen.objects(role)]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert all(word.isalnum() and word.islower() for word in words)
    predicates = {name for seed in range(60) for name in compose(chosen, "", random.Random(seed))[0].predicates}
    assert predicates.isdisjoint(words)
    assert len(chosen.chain.states) == len(chosen.chain.verbs) + 1 == 4
