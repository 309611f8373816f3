"""``step_judge``: models judge the steps of trajectories: which are right, how good they are, which were critical.

A step is shown as observation, action, observation (STEVE, arXiv:2503.12532). Critical steps are named by their numbers
in the whole transcript, at most a share of them (ATLaS, arXiv:2503.02197). Steps that a branch copied are judged in the
trajectory they come from, so each node of a search tree that is part of a trajectory is judged once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.conditions import ROUNDING, reaches
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.synthesis.rollouts.delimiting import between, delimited, judging_prompt, message_lines
from agentmill.synthesis.rollouts.llm_calls import TRIES
from agentmill.synthesis.step_values import Step, steps_of
from agentmill.synthesis.verifiers.judge import ANSWERS, EXPLAINED, BinaryAnswer, GradedAnswer, Scale
from agentmill.synthesis.verifiers.judging import Answer, Panel, Question, ask_all, object_schema, prompt_digest, spent
from agentmill.synthesis.verifiers.verifier import Finding, ModelVerifier

CRITICAL, OTHER = "critical", "other"
SCALES: dict[str, Scale] = {"correct": "binary", "score": "1-5"}


class CriticalAnswer(Record):
    """What a judge answers who names critical steps."""

    reasons: str
    steps: list[int]


class StepJudge(ModelVerifier):
    """Verdicts of models on each step, whether it is right or how good it is, or labels of the critical steps."""

    writes_labels: ClassVar[bool] = True

    name: str = "step_judge"
    criterion: Literal["correct", "score", "critical"] = Field(
        "correct", description="whether a step is right, how good it is from 1 to 5, or which steps are critical"
    )
    criteria: str = Field(
        "The step brings the task closer to its goal, or is a sensible try to do so.",
        min_length=1,
        description="what a right or good step is, in words; not for critical",
    )
    context: Literal["step", "all"] = Field(
        "step", description="what is shown before a step: the task and the last observation, or all; not for critical"
    )
    keep: float = Field(0.3, gt=0, le=1, description="critical: at most this share of the steps, one at least")
    pass_at: float = Field(1.0, gt=0, le=1, description="the mean score of the steps that passes; not for critical")

    @model_validator(mode="after")
    def _what_goes_together(self) -> StepJudge:
        own = {"keep"} if self.criterion == "critical" else {"criteria", "context", "pass_at"}
        foreign = ({"keep", "criteria", "context", "pass_at"} - own) & self.model_fields_set
        # A model that is made of another one's values has all fields set, to the defaults where nothing was given.
        differing = [name for name in sorted(foreign) if getattr(self, name) != type(self).model_fields[name].default]
        if differing:
            raise ValueError(f"`{differing[0]}` does not go with `criterion: {self.criterion}`")
        return self

    def most_answers(self, turns: int | None, judges: int) -> int | None:
        """On each turn, or for critical once on all; what is asked again counts."""
        del judges
        if self.criterion == "critical":
            return TRIES
        return None if turns is None else turns * TRIES

    async def judge(self, task: Task | None, trajectory: Trajectory, panel: Panel) -> Sequence[Finding]:
        """A verdict on each own step, or a label, and one on the whole. Raises ``PolicyError``.

        The score of the whole is the mean of the steps', or the share that is critical. Unscored (``no_steps``) without
        own steps, and where no step is judged, with the reason of the first. Where some are not judged it passes, or
        fails, only if it would with any score of these; else ``passed`` is None.
        """
        del task
        steps = [step for step in steps_of(trajectory) if step.own]
        whole = self.verdict(trajectory, panel.identity)
        if not steps:
            return [msgspec.structs.replace(whole, reason="no_steps")]
        if self.criterion == "critical":
            return await self._critical(trajectory, panel, steps)
        return await self._graded(trajectory, panel, steps)

    async def _graded(self, trajectory: Trajectory, panel: Panel, steps: Sequence[Step]) -> list[Finding]:
        wanted: type[Any] = BinaryAnswer if self.criterion == "correct" else GradedAnswer
        questions = [self._question(trajectory, step) for step in steps]
        answers = [
            await ask_all(panel, [question] * len(panel.judges), wanted, f"step/{step.item}")
            for step, question in zip(steps, questions, strict=True)
        ]
        found = [self._on_step(trajectory, panel, step, given) for step, given in zip(steps, answers, strict=True)]
        evidence: JsonObject = {
            "prompt": prompt_digest(questions[0], self.model_dump(mode="json")),
            "usage": spent([answer for given in answers for answer in given]),
        }
        whole = self.verdict(trajectory, panel.identity)
        scores = [verdict.score for verdict in found if verdict.score is not None]
        if not scores:
            return [msgspec.structs.replace(whole, reason=found[0].reason, evidence=evidence), *found]
        wrong = [verdict.item for verdict in found if verdict.passed is False]
        unscored = len(found) - len(scores)
        evidence |= {"steps": len(scores)}
        evidence |= {"unscored_steps": unscored} if unscored else {}
        evidence |= {"first_item": wrong[0]} if wrong else {}
        least, most = (reaches((sum(scores) + missing) / len(found), self.pass_at) for missing in (0, unscored))
        judged = msgspec.structs.replace(
            whole,
            status="scored",
            score=sum(scores) / len(scores),
            passed=least if least == most else None,
            evidence=evidence,
        )
        return [judged, *found]

    def _on_step(self, trajectory: Trajectory, panel: Panel, step: Step, answers: Sequence[Answer[Any]]) -> Verdict:
        verdict = msgspec.structs.replace(self.verdict(trajectory, panel.identity), item=step.item)
        scores = [_score(answer.value.verdict) for answer in answers if answer.value is not None]
        known = [score for score in scores if score is not None]
        reasons = [answer.value.reasons for answer in answers if answer.value is not None]
        if not known:
            fault = next((answer.fault for answer in answers if answer.fault is not None), "out_of_range")
            return msgspec.structs.replace(verdict, reason=fault, evidence={"reasons": reasons})
        score = sum(known) / len(known)
        return msgspec.structs.replace(
            verdict, status="scored", score=score, passed=score >= 0.5, evidence={"reasons": reasons}
        )

    def _question(self, trajectory: Trajectory, step: Step) -> Question:
        content = trajectory.content
        before = [item for item in content if item.turn < step.turn]
        if self.context == "step":
            opening = [item for item in before if item.turn == 0]
            last = [
                item for item in before if item.turn == step.turn - 1 and item.turn > 0 and not isinstance(item, Action)
            ]
            before = [*opening, *last]
        shown = delimited(before, trajectory.system_prompt)
        taken = delimited([item for item in content if item.turn == step.turn])
        scale = SCALES[self.criterion]
        criteria = f"Criteria:\n{self.criteria}\n\n{EXPLAINED[scale][0]}"
        return Question(
            episode_id=trajectory.trajectory_id,
            system_prompt=f"{judging_prompt('step_judge')}\n\n{criteria}",
            text=f"Before the step:\n{shown}\n\nThe step:\n{taken}",
            schema=object_schema(reasons={"type": "string"}, verdict=ANSWERS[scale]),
        )

    async def _critical(self, trajectory: Trajectory, panel: Panel, steps: Sequence[Step]) -> list[Finding]:
        """The steps that most judges name, the earlier named first, as many as may be kept."""
        most = max(1, math.floor(self.keep * len(steps) + ROUNDING))
        question = self._critical_question(trajectory, steps, most)
        answers = await ask_all(panel, [question] * len(panel.judges), CriticalAnswer, "critical")
        named = [_named(answer, len(steps)) for answer in answers]
        whole = self.verdict(trajectory, panel.identity)
        evidence: JsonObject = {
            "prompt": prompt_digest(question, self.model_dump(mode="json")),
            "usage": spent(answers),
            "reasons": [answer.value.reasons for answer in answers if answer.value is not None],
        }
        if not any(named):
            fault = next((answer.fault for answer in answers if answer.fault is not None), "no_step_named")
            return [msgspec.structs.replace(whole, reason=fault, evidence=evidence)]
        votes = Counter(number for numbers in named for number in numbers)
        places = {number: min(each.index(number) for each in named if number in each) for number in votes}
        ranked = sorted(votes, key=lambda number: (-votes[number], places[number], number))
        chosen = set(ranked[:most])
        over = max(0, len(ranked) - most)
        labels = [
            Label(
                trajectory_id=trajectory.trajectory_id,
                name=self.name,
                value=CRITICAL if number in chosen else OTHER,
                labeller=panel.identity,
                item=step.item,
            )
            for number, step in enumerate(steps, 1)
        ]
        evidence |= {"critical": [steps[number - 1].item for number in sorted(chosen)], "over_budget": over}
        share = len(chosen) / len(steps)
        return [msgspec.structs.replace(whole, status="scored", score=share, evidence=evidence), *labels]

    def _critical_question(self, trajectory: Trajectory, steps: Sequence[Step], most: int) -> Question:
        numbers = {step.turn: number for number, step in enumerate(steps, 1)}
        lines: list[JsonObject] = []
        for turn in sorted({item.turn for item in trajectory.content}):
            items = [item for item in trajectory.content if item.turn == turn]
            mark: JsonObject = {"step": numbers[turn]} if turn in numbers else {}
            lines += [
                {**mark, **line} for line in message_lines(items, trajectory.system_prompt if not lines else None)
            ]
        return Question(
            episode_id=trajectory.trajectory_id,
            system_prompt=judging_prompt("step_judge_critical"),
            text=f"{between(lines)}\n\nName at most {most} of the {len(steps)} steps.",
            schema=object_schema(reasons={"type": "string"}, steps={"type": "array", "items": {"type": "integer"}}),
        )


def _score(verdict: bool | int) -> float | None:
    if isinstance(verdict, bool):
        return float(verdict)
    return (verdict - 1) / 4 if 1 <= verdict <= 5 else None


def _named(answer: Answer[CriticalAnswer], steps: int) -> list[int]:
    """The steps that a judge names, each once, without those that there are not."""
    given = answer.value.steps if answer.value is not None else []
    return list(dict.fromkeys(number for number in given if 1 <= number <= steps))
