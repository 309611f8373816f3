"""``check_rubric``: a list of requirements, each checked by a model, by a rule over the actions, or by both.

One question to each judge holds all requirements in words; with ``swap`` a second one holds them in reverse order, and
a requirement on which the two answers differ is unscored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.rollouts.delimiting import delimited, judging_prompt
from agentmill.synthesis.rollouts.llm_calls import TRIES
from agentmill.synthesis.verifiers.judging import Answer, Panel, Question, ask_all, object_schema, prompt_digest, spent
from agentmill.synthesis.verifiers.rules import Rule, asked_first
from agentmill.synthesis.verifiers.verifier import Finding, ModelVerifier, Part, PartId, check_ids, weighted


def _with_id(value: Any) -> Any:
    return {"id": "rule", **value} if isinstance(value, Mapping) else value


class Requirement(Config):
    """One requirement: ``text`` for the judges, ``rule`` over the actions, or both, which then must both hold."""

    id: PartId
    text: str | None = Field(default=None, min_length=1, description="what judges check, in words")
    rule: Annotated[Rule, BeforeValidator(_with_id)] | None = Field(
        default=None, description="what is computed: a rule as in check_rules, without id, weight and veto"
    )
    weight: float = Field(default=1.0, gt=0, description="how much of the score it is")
    veto: bool = Field(default=False, description="where it is not met, nothing passes")

    @model_validator(mode="after")
    def _can_be_checked(self) -> Requirement:
        if self.text is None and self.rule is None:
            raise ValueError(f"requirement {self.id!r} has neither `text` nor `rule`")
        return self

    @model_validator(mode="after")
    def _counts_as_a_whole(self) -> Requirement:
        # Of its rule only the violations are used, so these keys would have no effect there.
        of_rule = set() if self.rule is None else self.rule.model_fields_set
        misplaced = next((key for key in ("veto", "weight") if key in of_rule), None)
        if misplaced is not None:
            raise ValueError(f"`{misplaced}` of requirement {self.id!r} is within its `rule`; give it next to `rule`")
        return self


class Checked(msgspec.Struct, frozen=True):
    """A judge's answer on one requirement."""

    reason: str
    met: bool | None


class CheckRubric(ModelVerifier):
    """Which requirements of a rubric are met: a verdict each, by models in words, by rules, or by both."""

    name: str = "check_rubric"
    rubric: list[Requirement] = Field(min_length=1, description="the requirements")
    swap: bool = Field(False, description="judges are asked twice, the second time in reverse order")
    pass_at: float = Field(1.0, gt=0, le=1, description="the score, a weighted share of requirements met, that passes")

    @model_validator(mode="after")
    def _ids_differ(self) -> CheckRubric:
        check_ids(self.parts(), "requirements")
        keys = [_key(each) for each in self.parts()]
        same = next((each for each in self.parts() if keys.count(_key(each)) > 1), None)
        if same is not None:
            raise ValueError(f"the id {same!r} and that of another requirement are one field of answers; change one")
        return self

    def parts(self) -> list[str]:
        """The ids of the requirements."""
        return [each.id for each in self.rubric]

    def asks_models(self) -> bool:
        """Whether any requirement is in words."""
        return any(each.text is not None for each in self.rubric)

    def most_answers(self, turns: int | None, judges: int) -> int | None:
        """In one order or in both, if anything is asked; what is asked again counts."""
        del turns, judges
        return (1 + self.swap) * TRIES if self.asks_models() else 0

    async def judge(self, task: Task | None, trajectory: Trajectory, panel: Panel) -> Sequence[Finding]:
        """A verdict per requirement and one on the whole. Raises ``PolicyError``.

        A requirement in words is met if more than half of the judges that decide find so. It is unscored where they are
        even, or none decides; a judge that contradicts itself does not. The whole is then unscored, too, where no judge
        gave an answer that can be read, or the requirement has a veto, unless it fails either way.
        """
        answers = await self._answers(trajectory, panel) if self.asks_models() else []
        instruction = task.instruction if task is not None else asked_first(trajectory.content)
        evidence: JsonObject = {}
        if answers:
            asked = self._question(trajectory, swapped=False)
            flat = [answer for each in answers for answer in each]
            evidence = {"prompt": prompt_digest(asked, self.model_dump(mode="json")), "usage": spent(flat)}
        found = [self._on(each, trajectory, instruction, panel, answers) for each in self.rubric]
        whole = self.verdict(trajectory, panel.identity if answers else "rules")
        return [self._whole(whole, found, evidence), *found]

    def _whole(self, verdict: Verdict, found: Sequence[Verdict], evidence: JsonObject) -> Verdict:
        """The verdict on all; unscored where a requirement was not judged that decides whether it passes."""
        parts = [
            Part(requirement.id, each.passed, requirement.weight, requirement.veto)
            for requirement, each in zip(self.rubric, found, strict=True)
        ]
        lacking = {
            requirement.id: each.reason
            for requirement, each in zip(self.rubric, found, strict=True)
            if each.passed is None and each.reason not in (NOT_APPLICABLE, *(() if requirement.veto else UNDECIDED))
        }
        at_best = [msgspec.structs.replace(part, met=True) if part.id in lacking else part for part in parts]
        if lacking and weighted(verdict, at_best, self.pass_at).passed:
            return msgspec.structs.replace(verdict, reason=next(iter(lacking.values())), evidence=evidence)
        return weighted(verdict, parts, self.pass_at, **evidence)

    async def _answers(self, trajectory: Trajectory, panel: Panel) -> list[list[Answer[Any]]]:
        """The answers of each judge, in one order or in both."""
        wanted = msgspec.defstruct(
            "Rubric", [(_key(each.id), Checked) for each in self.rubric if each.text], forbid_unknown_fields=True
        )
        orders = [False, True] if self.swap else [False]
        by_order = [
            await ask_all(panel, [self._question(trajectory, swapped)] * len(panel.judges), wanted, f"rubric/{swapped}")
            for swapped in orders
        ]
        return [list(each) for each in zip(*by_order, strict=True)]

    def _question(self, trajectory: Trajectory, swapped: bool) -> Question:
        asked = [each for each in self.rubric if each.text is not None]
        ordered = asked[::-1] if swapped else asked
        listed = "\n".join(f"{_key(each.id)}: {each.text}" for each in ordered)
        entry = object_schema(reason={"type": "string"}, met={"type": ["boolean", "null"]})
        return Question(
            episode_id=trajectory.trajectory_id,
            system_prompt=f"{judging_prompt('check_rubric')}\n\nRequirements:\n{listed}",
            text=delimited(trajectory.content, trajectory.system_prompt),
            schema=object_schema(**{_key(each.id): entry for each in ordered}),
        )

    def _on(
        self,
        requirement: Requirement,
        trajectory: Trajectory,
        instruction: str | None,
        panel: Panel,
        answers: Sequence[Sequence[Answer[Any]]],
    ) -> Verdict:
        """The verdict on one requirement; of two checks both have to say yes, and one no is enough."""
        checks: list[tuple[bool | None, str | None]] = []
        evidence: JsonObject = {}
        if requirement.rule is not None:
            broken = requirement.rule.violations(trajectory, instruction)
            checks.append((None, NOT_APPLICABLE) if broken is None else (not broken, None))
            evidence["rule"] = None if broken is None else [each.detail for each in broken[:3]]
        if requirement.text is not None:
            votes = [_vote(_key(requirement.id), each) for each in answers]
            checks.append(_majority(votes))
            evidence["judges"] = [
                {"judge": judge.identity, "met": met, "reason": reason}
                for judge, (met, reason) in zip(panel.judges, votes, strict=True)
            ]
        verdict = self.verdict(trajectory, panel.identity if requirement.text is not None else "rules", requirement.id)
        met = [each for each, _ in checks]
        if False not in met and None in met:
            reason = next(why for each, why in checks if each is None)
            return msgspec.structs.replace(verdict, reason=reason, evidence=evidence)
        passed = False not in met
        return msgspec.structs.replace(verdict, status="scored", score=float(passed), passed=passed, evidence=evidence)


NOT_APPLICABLE = "not_applicable"
UNDECIDED = ("cannot_tell", "even", "contradicts_itself")
"""Why a requirement is unscored although the judges have answered."""


def _key(name: str) -> str:
    """An id as a field of an answer: a word in every language."""
    return f"r_{name.replace('-', '_dash_')}"


def _vote(key: str, answers: Sequence[Answer[Any]]) -> tuple[bool | None, str | None]:
    """What one judge says of a requirement, and its reason, or why it says nothing."""
    fault = next((answer.fault for answer in answers if answer.value is None), None)
    if fault is not None:
        return None, fault
    given = [getattr(answer.value, key) for answer in answers]
    if len({each.met for each in given}) > 1:
        return None, "contradicts_itself"
    return given[0].met, given[0].reason if given[0].met is not None else "cannot_tell"


def _majority(votes: Sequence[tuple[bool | None, str | None]]) -> tuple[bool | None, str | None]:
    yes, no = sum(met is True for met, _ in votes), sum(met is False for met, _ in votes)
    if yes == no:
        return None, "even" if yes else next(reason for met, reason in votes if met is None)
    return yes > no, None
