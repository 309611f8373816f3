"""Verifiers by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmill.schemas.registry import Registry

if TYPE_CHECKING:
    from agentmill.synthesis.verifiers.verifier import Verifier

VERIFIERS: Registry[type[Verifier]] = Registry(
    "verifier",
    {
        "answer_match": "agentmill.synthesis.verifiers.answer_match:AnswerMatch",
        "check_outcome": "agentmill.synthesis.verifiers.check_outcome:CheckOutcome",
        "check_rules": "agentmill.synthesis.verifiers.check_rules:CheckRules",
        "check_rubric": "agentmill.synthesis.verifiers.check_rubric:CheckRubric",
        "judge": "agentmill.synthesis.verifiers.judge:JudgeVerifier",
        "milestones": "agentmill.synthesis.verifiers.milestones:Milestones",
        "scorer": "agentmill.synthesis.verifiers.scorer:ScorerVerifier",
        "step_judge": "agentmill.synthesis.verifiers.step_judge:StepJudge",
        "unit_tests": "agentmill.synthesis.verifiers.unit_tests:UnitTests",
    },
    group="verifiers",
)
