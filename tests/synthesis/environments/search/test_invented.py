from __future__ import annotations

from agentmill.synthesis.environments.search.invented import invented_articles


def test_invented_articles_are_the_same_for_a_seed_and_mention_each_other() -> None:
    articles = invented_articles(200, 3)
    assert articles == invented_articles(200, 3) != invented_articles(200, 4)
    assert len({article.id for article in articles}) == 200
    titles = {article.title for article in articles}
    linked = [each for each in articles if any(title in each.text for title in titles - {each.title})]
    assert len(linked) > 190


def test_small_numbers_of_articles() -> None:
    assert [len(invented_articles(n)) for n in (0, 1, 2, 7)] == [0, 1, 2, 7]
