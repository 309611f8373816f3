"""Search trees whose states are worth what a reward model says of the conversation so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from agentmill.schemas.records.rows import Message
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.synthesis.policies.policy import ContextOverflow, PolicyError
from agentmill.synthesis.policies.reward_model import Shown
from agentmill.synthesis.strategies.search.search import StateScores
from agentmill.synthesis.strategies.search.tree import SearchNode, SelectionName, select
from agentmill.synthesis.strategies.tree_search import TreeSearch
from tests.decision_environment import Chooser, decision_task
from tests.synthesis.strategies.searching import DEEP, exploration, search
from tests.synthesis.verifiers.known import Scoring, Script

SCORES = {"": 0.0, "a": -2.0, "b": 4.0, "aa": -2.0, "ab": -2.0, "ba": 3.0, "bb": -1.0}


def path(messages: Sequence[Message]) -> str:
    """What the agent did so far."""
    return "".join(str(message.content) for message in messages if message.role == "assistant")


def by_path(messages: Sequence[Message]) -> float:
    return SCORES[path(messages)]


async def test_a_scorer_leads_the_search() -> None:
    scorer, actor = Scoring(by_path), Chooser()
    found = await search(decision_task(DEEP), actor, None, scorer=scorer, method="beam", branching=8, value="scorer")
    assert {where for where, _ in actor.asked} == {"", "b", "ba"}
    assert sorted(map(path, scorer.scored)) == ["a", "b", "ba", "bb"]
    for place in ("a", "b", "ba", "bb"):
        assert found.by_place[place].extra["estimate"] == pytest.approx(1 / (1 + math.exp(-SCORES[place])))
    assert found.by_place["bab"].extra["estimate"] == 0.9, "what has ended is worth what it returns"
    costs = found.root.extra["costs"]
    assert costs["scorer_calls"] == 4
    assert costs["prompt_tokens"] >= sum(map(len, scorer.scored)) > 0


async def test_scores_are_rescaled_and_clipped() -> None:
    parameters: dict[str, Any] = {
        "method": "beam",
        "branching": 8,
        "value": "scorer",
        "score_from": -1,
        "score_to": 3.5,
    }
    found = await search(decision_task(DEEP), None, None, scorer=Scoring(by_path), **parameters)
    estimates = [found.by_place[place].extra["estimate"] for place in ("a", "b", "ba", "bb")]
    assert estimates == [0.0, 1.0, pytest.approx(8 / 9), 0.0]
    assert found.root.extra["costs"]["clipped_scores"] == 2, "those of a and b"
    less = StateScores(Scoring(by_path), 3.5, -1.0)
    assert [less.value(score) for score in (4.0, 3.5, -1.0, -2.0)] == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("score", "value"), [(-1e4, 0.0), (0.0, 0.5), (1e4, 1.0)])
def test_no_score_is_too_large_for_the_logistic_function(score: float, value: float) -> None:
    assert StateScores(Scoring(by_path), None, None).value(score) == value


@pytest.mark.parametrize(
    "error", [ContextOverflow("full"), PolicyError("malformed", "junk"), PolicyError("template", "no")]
)
@pytest.mark.parametrize("method", ["mcts", "best_first", "beam"])
async def test_a_state_without_a_score_leaves_the_tree_whole(method: str, error: PolicyError) -> None:
    script: Script = lambda messages: error if path(messages) == "b" else by_path(messages)  # noqa: E731
    found = await search(
        decision_task(DEEP), None, None, scorer=Scoring(script), value="scorer", method=method, branching=8
    )
    assert found.by_place["b"].extra["unscored"] is True
    assert found.root.extra["costs"]["unscored_nodes"] == 1
    assert found.runs


@pytest.mark.parametrize(("selection", "c"), [("uct", 1.0), ("puct", 1.0)])
def test_a_state_without_a_score_does_not_swallow_the_search(selection: SelectionName, c: float) -> None:
    episode: Any = None
    root = SearchNode(0, None, episode, b"", "root", visits=1, total=0.8)
    root.children = [SearchNode(n, root, episode, b"", f"s{n}", prior=0.5, unscored=n == 1) for n in (1, 2)]
    went = []
    for _ in range(40):
        node = select(root, selection, c)
        went.append(node.number)
        node.entered += node.unscored and not node.visits
        if not node.unscored:
            node.backup(0.8)
    assert 12 <= went.count(1) <= 28, "like a sibling that is worth as much as its parent"


async def test_states_that_the_view_of_the_training_does_not_show_have_no_value() -> None:
    scorer = Scoring(by_path, Shown(Dialogue(role="planner")))
    found = await search(decision_task(DEEP), None, None, scorer=scorer, value="scorer", method="beam", branching=8)
    assert (found.by_place["b"].extra["unscored"], scorer.scored) == (True, [])


async def test_a_scorer_that_cannot_be_asked_ends_the_tree() -> None:
    with pytest.raises(PolicyError, match="timeout"):
        await search(
            decision_task(DEEP), None, None, scorer=Scoring(lambda _: PolicyError("timeout", "late")), value="scorer"
        )


async def test_scores_count_among_the_calls() -> None:
    found = await search(decision_task(DEEP), None, None, scorer=Scoring(by_path), value="scorer", max_calls=10)
    assert found.root.extra["stopped"] == "budget"
    assert sum(found.root.extra["costs"][f"{role}_calls"] for role in ("actor", "scorer")) == 10


def test_the_ids_of_trees_tell_their_scorers_and_scales() -> None:
    task = decision_task(DEEP)
    other = Scoring(by_path)
    other.revision = "another"

    def tree_id(scorer: Scoring, **scale: float) -> str:
        explored = exploration(task, actor=Chooser(), scorer=scorer)
        return TreeSearch(value="scorer", **scale).planned(explored)[0]

    ids = [tree_id(Scoring(by_path)), tree_id(other), tree_id(Scoring(by_path), score_from=0, score_to=1)]
    assert len(set(ids)) == 3
    assert tree_id(Scoring(by_path)) == ids[0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"score_from": 0, "score_to": 1}, "go with `value: scorer`"),
        ({"value": "scorer", "score_from": 0}, "give both or none"),
        ({"value": "scorer", "score_to": 0}, "give both or none"),
        ({"value": "scorer", "score_from": 1, "score_to": 1}, "two different scores"),
    ],
)
def test_a_scale_has_two_ends(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TreeSearch(**parameters)
