"""``check_rules``: which rules over its actions a trajectory keeps, and which of its steps break them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.step_values import steps_of
from agentmill.synthesis.verifiers.rules import Rule, Violation, asked_first
from agentmill.synthesis.verifiers.verifier import Finding, Part, Verifier, check_ids, weighted

JUDGE = "rules"


class CheckRules(Verifier):
    """Whether trajectories keep rules of order, number, form and grounding; one verdict each, labels on violations."""

    writes_labels: ClassVar[bool] = True

    name: str = "check_rules"
    rules: list[Rule] = Field(min_length=1, description="what is checked, see docs/verifying.md")
    per_step: bool = Field(
        False, description="a verdict on each step, too: views can leave out those that break a rule"
    )
    pass_at: float = Field(1.0, gt=0, le=1, description="the score, a weighted share of rules kept, that passes")

    @model_validator(mode="after")
    def _ids_differ(self) -> CheckRules:
        check_ids(self.parts(), "rules")
        return self

    def parts(self) -> Sequence[str]:
        """The ids of the rules."""
        return [rule.id for rule in self.rules]

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Sequence[Finding]:
        """A verdict per rule and one on the whole; each item that breaks a rule is labelled ``violated`` under it.

        The score is the weighted share of the rules that apply. Unscored (``not_applicable``) where none applies.
        ``evidence.first_item`` is the first item that breaks any rule: the step up to which the trajectory is sound.
        """
        del environment
        instruction = task.instruction if task is not None else asked_first(trajectory.content)
        broken = {rule.id: rule.violations(trajectory, instruction) for rule in self.rules}
        verdicts = [self._verdict_on(trajectory, rule, broken[rule.id]) for rule in self.rules]
        labels = [
            Label(
                trajectory_id=trajectory.trajectory_id,
                name=f"{self.name}/{name}",
                value="violated",
                labeller=JUDGE,
                item=item,
                reason=next(each.detail for each in found or () if each.item == item),
            )
            for name, found in broken.items()
            for item in dict.fromkeys(each.item for each in found or () if each.item is not None)
        ]
        whole = self._whole(trajectory, broken)
        steps = self._on_steps(trajectory, {label.item for label in labels}) if self.per_step else []
        return [whole, *verdicts, *steps, *labels]

    def _on_steps(self, trajectory: Trajectory, blamed: set[int | None]) -> list[Verdict]:
        """A verdict on each step, named by its first action: whether none of its actions breaks a rule."""
        turns = {trajectory.content[item].turn for item in blamed if item is not None}
        verdict = self.verdict(trajectory, JUDGE)
        return [
            msgspec.structs.replace(
                verdict,
                status="scored",
                item=step.item,
                score=float(step.turn not in turns),
                passed=step.turn not in turns,
            )
            for step in steps_of(trajectory)
        ]

    def _verdict_on(self, trajectory: Trajectory, rule: Rule, found: list[Violation] | None) -> Verdict:
        verdict = self.verdict(trajectory, JUDGE, rule.id)
        if found is None:
            return msgspec.structs.replace(verdict, reason="not_applicable")
        return msgspec.structs.replace(
            verdict,
            status="scored",
            score=float(not found),
            passed=not found,
            reason=found[0].detail if found else None,
            evidence={"violations": len(found), **({"item": found[0].item} if found else {})},
        )

    def _whole(self, trajectory: Trajectory, broken: dict[str, list[Violation] | None]) -> Verdict:
        items = [each.item for found in broken.values() for each in found or () if each.item is not None]
        parts = [
            Part(rule.id, None if found is None else not found, rule.weight, rule.veto)
            for rule, found in zip(self.rules, broken.values(), strict=True)
        ]
        first = {"first_item": min(items)} if items else {}
        return weighted(self.verdict(trajectory, JUDGE), parts, self.pass_at, **first)
