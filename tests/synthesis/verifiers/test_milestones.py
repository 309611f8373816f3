"""``milestones``: partial credit, order, and the step that reached each."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.config import validate
from agentmill.synthesis.verifiers.milestones import Milestones
from agentmill.synthesis.verifiers.verifier import Findings, findings
from tests.builders import called, seen, trajectory
from tests.errors import user_error

STEPS = [
    {"id": "found", "of": {"tool": "search"}},
    {"id": "opened", "of": {"tool": "open"}},
    {"id": "bought", "of": {"observation": "Thank you"}, "weight": 2.0},
]


async def reached(*names: str, **parameters: Any) -> Findings:
    content = [called(name, turn, None) for turn, name in enumerate(names, start=1)]
    record = trajectory(content=[*content, seen("Thank you!", len(names))])
    verifier = Milestones.model_validate({"milestones": STEPS, **parameters})
    return findings(verifier, record, await verifier.verify(None, record))


async def test_credit_is_the_weighted_share_and_steps_are_labelled() -> None:
    found = await reached("search", "search")
    whole = found.verdicts[0]
    assert (whole.score, whole.passed) == (0.75, False)
    assert whole.evidence == {"items": {"found": 0, "opened": None, "bought": 2}}
    assert [(each.name, each.passed) for each in found.verdicts[1:]] == [
        ("milestones/found", True),
        ("milestones/opened", False),
        ("milestones/bought", True),
    ]
    assert [(each.name, each.value, each.item) for each in found.labels] == [
        ("milestones/found", "reached", 0),
        ("milestones/bought", "reached", 2),
    ]
    assert (await reached("search", pass_at=0.75)).verdicts[0].passed is True


async def test_in_order_each_counts_only_after_the_one_before() -> None:
    whole = (await reached("open", "search", "open", ordered=True)).verdicts[0]
    assert (whole.score, whole.evidence) == (1.0, {"items": {"found": 1, "opened": 2, "bought": 3}})
    early = (await reached("open", "search", ordered=True)).verdicts[0]
    assert (early.score, early.evidence) == (0.25, {"items": {"found": 1, "opened": None, "bought": None}})
    assert (await reached("open", "search")).verdicts[0].score == 1.0


def test_ids_have_to_differ() -> None:
    with user_error("rule-broken", "two milestones have the id 'found'"):
        validate(Milestones, {"milestones": [STEPS[0], STEPS[0]]}, "milestones")
