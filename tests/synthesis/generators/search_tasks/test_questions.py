from __future__ import annotations

import random

from agentmill.synthesis.environments.search.corpus import Document
from agentmill.synthesis.generators.search_tasks.corpus_facts import CorpusFacts, corpus_facts
from agentmill.synthesis.generators.search_tasks.questions import Draft, draw_mask, draw_walk, draw_width

ADA = Document("ada", "Ada Vries", "Ada Vries was a poet who was born in Tamselford.")
TOWN = Document("town", "Tamselford", "It has a bridge with 88 arches over the water.")


def drawn(draw: object, found: CorpusFacts, depth: int) -> list[Draft]:
    assert callable(draw)
    return [each for seed in range(40) if (each := draw(found, depth, random.Random(seed))) is not None]


def test_a_walk_hides_the_name_between_two_passages() -> None:
    (first, *others) = drawn(draw_walk, corpus_facts([ADA, TOWN], 0), 2)
    assert {each.instruction for each in others} == {first.instruction}
    assert first.instruction == (
        "What belongs in the place of [MASK]? Each letter in brackets hides one name.\n"
        "- About Ada Vries: “Ada Vries was a poet who was born in [A].”\n"
        "- About [A]: “It has a bridge with [MASK] arches over the water.”"
    )
    assert (first.answers, first.hidden) == (("88",), ("Tamselford",))
    assert [hop.passage for hop in first.hops] == ["ada", "town"]
    assert drawn(draw_walk, corpus_facts([ADA, TOWN], 0), 3) == []


def test_a_walk_goes_by_a_shared_name_that_is_no_title() -> None:
    bridge = Document("bridge", "A bridge", "The engineer Bo Kerr built a bridge of stone.")
    letter = Document("letter", "The letter", "In a letter the engineer Bo Kerr asks for 4,100 crowns.")
    other = Document("other", "The other", "Nothing of this is about the man with 333 hats.")
    drafts = drawn(draw_walk, corpus_facts([bridge, letter, other], 0), 2)
    assert "- “In a letter the engineer [A] asks for [MASK] crowns.”" in drafts[0].instruction
    assert {each.answers for each in drafts} == {("4,100",)}


def test_a_mask_keeps_a_rare_name_to_search_by() -> None:
    found = corpus_facts([Document("ada", "Ada Vries", "Ada Vries left 4,100 crowns to a school in 1931.")], 0)
    drafts = drawn(draw_mask, found, 2)
    assert {each.answers for each in drafts} == {("4,100", "1931")}
    assert "“Ada Vries left [MASK 1] crowns to a school in [MASK 2].”" in drafts[0].instruction
    nameless = corpus_facts([Document("x", "Ada Vries", "She left 4,100 crowns to a school in 1931.")], 0)
    assert drawn(draw_mask, nameless, 1) == []


def test_every_mention_of_a_masked_detail_is_masked() -> None:
    found = corpus_facts([Document("ada", "Ada Vries", "In 1931 Ada Vries moved, and after 1931 nobody wrote.")], 0)
    assert {each.instruction.count("[MASK]") for each in drawn(draw_mask, found, 1)} == {3}


def test_width_asks_for_several_statements_of_one_document() -> None:
    text = "It has 88 arches and two towers of stone. It was built in 1931 by hand. It cost 4,100 crowns in all."
    drafts = drawn(draw_width, corpus_facts([Document("b", "Tamsel bridge", text)], 0), 2)
    assert {each.answers for each in drafts} == {("88", "1931"), ("88", "4,100"), ("1931", "4,100")}
    assert all("statements about Tamsel bridge" in each.instruction for each in drafts)
    assert all(each.instruction.count("\n- ") == 2 for each in drafts)
    assert drawn(draw_width, corpus_facts([Document("b", "Tamsel bridge", text)], 0), 4) == []


def test_a_link_chooses_among_documents_with_one_title() -> None:
    start = Document("ada", "Ada Vries", "The poet Ada Vries was born in Tamselford.", ["second"])
    namesakes = [
        Document("first", "Tamselford", "A village: Tamselford has a bridge with 44 arches."),
        Document("second", "Tamselford", "A town: the town Tamselford has a bridge with 88 arches."),
    ]
    drafts = drawn(draw_walk, corpus_facts([start, *namesakes], 0), 2)
    assert {each.answers for each in drafts} == {("88",)}
