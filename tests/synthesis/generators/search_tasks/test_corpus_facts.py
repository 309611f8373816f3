from __future__ import annotations

import pytest

from agentmill.synthesis.environments.search.corpus import Document
from agentmill.synthesis.environments.search.invented import invented_articles
from agentmill.synthesis.generators.search_tasks.corpus_facts import RARE, corpus_facts


def spans_of(text: str, *titles: str) -> list[tuple[str, str]]:
    documents = [Document("d", "The text", text), *(Document(title, title, "Nothing here to ask.") for title in titles)]
    return [(span.kind, span.text) for sentence in corpus_facts(documents, 0).sentences[0] for span in sentence.spans]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("They were first counted on 3 May 1931 by hand.", [("date", "3 May 1931")]),
        ("They were counted in 1931, and again on May 3, 1945.", [("date", "1931"), ("date", "May 3, 1945")]),
        ("The town has 12,400 inhabitants and 36.5 roads, 7 of stone.", [("number", "12,400"), ("number", "36.5")]),
        ("The version 1.2.3 and the model x1931 are no numbers.", []),
        ("In Lower Tamsel the poet Ada de Vries was born.", [("name", "Lower Tamsel"), ("name", "Ada de Vries")]),
        ("Otters were seen at noon, and nobody knows why.", []),
        ("When It was over on a Monday in May, they left.", []),
        ("On the banks of Tamsel, Tamsel was named again.", [("name", "Tamsel")]),
    ],
)
def test_dates_numbers_and_names(text: str, expected: list[tuple[str, str]]) -> None:
    assert spans_of(text) == expected


def test_titles_of_other_documents_are_found_whole() -> None:
    text = "Tamsel otters were drawn by a monk of the Tamsel otters society."
    assert spans_of(text, "Tamsel otters", "Tamsel (river)") == [("title", "Tamsel otters")]
    assert spans_of("The Tamsel otters' home is a river.", "Tamsel otters")[0] == ("title", "Tamsel otters")
    titles = ["The Long Way", "The Long Way Home", "The Long", "The Way-Mark"]
    found = spans_of("She wrote The Long Way Home, The Long Way and The Way-Mark, not The Longest.", *titles)
    assert [text for kind, text in found if kind == "title"] == ["The Long Way Home", "The Long Way", "The Way-Mark"]
    assert spans_of("Nobody fishes in Tamselford or in the Tamsel.", "Tamsel (river)") == [
        ("title", "Tamsel"),
        ("name", "Tamselford"),
    ]


def test_a_title_that_two_documents_have_names_neither() -> None:
    found = corpus_facts([Document(name, "Tamsel", "A river, long and slow and cold.") for name in "ab"], 0)
    assert found.titles == {}


def test_names_in_many_passages_are_not_rare() -> None:
    documents = [Document(str(n), f"T{n}", f"The poet Ada Vries met Bo Kerr{n} at home.") for n in range(RARE + 1)]
    found = corpus_facts(documents, 0)
    assert not found.is_rare("Ada Vries")
    assert found.named["Bo Kerr2"] == [2]


def test_no_more_text_than_the_bound_is_held_the_same_in_any_order() -> None:
    articles = invented_articles(100)
    found = corpus_facts(articles, 1, most=4_000)
    assert sum(len(passage.text) for passage in found.passages) <= 4_000
    assert found.documents + found.unused == 100
    backwards = corpus_facts(articles[::-1], 1, most=4_000)
    assert {passage.id for passage in backwards.passages} == {passage.id for passage in found.passages}
    assert {each.id for each in corpus_facts(articles, 2, most=4_000).passages} != {each.id for each in found.passages}
