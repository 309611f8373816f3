"""``judge``: models judge whole trajectories by criteria in words; one model, a jury, a debate, a judge that runs code.

LLM-as-a-judge after Zheng et al. (arXiv:2306.05685), juries after Verga et al. (arXiv:2404.18796), debates after Du et
al. (arXiv:2305.14325), judges with tools after Zhuge et al. (arXiv:2410.10934). The verdict of a judge
is an opinion: see ``audit_judge`` for how far it agrees with what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.delimiting import between, delimited, judging_prompt
from agentmill.synthesis.rollouts.llm_calls import TRIES
from agentmill.synthesis.verifiers.judging import (
    Answer,
    Judge,
    Panel,
    Question,
    ask_all,
    object_schema,
    prompt_digest,
    spent,
)
from agentmill.synthesis.verifiers.verifier import ModelVerifier

Scale = Literal["binary", "1-5"]
ANSWERS: dict[Scale, JsonObject] = {
    "binary": {"type": "boolean"},
    "1-5": {"type": "integer", "minimum": 1, "maximum": 5},
}
EXPLAINED: dict[Scale, tuple[str, str]] = {
    "binary": (
        "Your verdict is true if the criteria are met, and false if they are not.",
        "Your verdict is false if the criteria are not met, and true if they are.",
    ),
    "1-5": (
        "Your verdict is a number from 1 (the criteria are not met at all) to 5 (they are fully met).",
        "Your verdict is a number from 5 (the criteria are fully met) down to 1 (they are not met at all).",
    ),
}
"""What an answer means, in two orders: models lean towards what they read first, or last."""


class BinaryAnswer(Record):
    """What a judge answers on the scale ``binary``."""

    reasons: str
    verdict: bool


class GradedAnswer(Record):
    """What a judge answers on the scale ``1-5``."""

    reasons: str
    verdict: int


class Opinion(msgspec.Struct, frozen=True):
    """One judge's score in [0, 1], or why it has none."""

    judge: str
    score: float | None
    reasons: str | None
    fault: str | None


class JudgeVerifier(ModelVerifier):
    """Verdicts of models on criteria in words: one judge or a jury, a debate, checks by code."""

    name: str = "judge"
    criteria: str = Field(min_length=1, description="what is judged, in words")
    scale: Scale = Field("binary", description="whether the criteria are met, or how far, from 1 to 5")
    swap: bool = Field(
        False, description="each judge is asked twice, in another order; one that contradicts itself has no verdict"
    )
    rounds: int = Field(0, ge=0, le=5, description="rounds of a debate, in which judges see the reasons of the others")
    checks: int = Field(0, ge=0, le=20, description="how often a judge may run code in the sandbox before it answers")
    pass_at: float = Field(0.5, gt=0, le=1, description="the mean score of the judges that passes")

    def runs_code(self) -> bool:
        """If judges may check what they read."""
        return self.checks > 0

    def most_answers(self, turns: int | None, judges: int) -> int | None:
        """In both orders and in each round of a debate: what is asked again counts, and what is run before."""
        del turns
        del judges
        return (1 + self.rounds) * (1 + self.swap) * (TRIES + self.checks)

    def check_judge_count(self, count: int) -> None:
        """Raises ``UserError`` for the debate of one judge."""
        if self.rounds and count < 2:
            raise UserError(
                f"`rounds: {self.rounds}` is a debate among several judges, and `judges` names one; name more, or leave"
                " it out",
                ErrorCode.KEY_NOT_FOR_THIS,
            )

    async def judge(self, task: Task | None, trajectory: Trajectory, panel: Panel) -> Verdict:
        """The score is the mean of the judges', from 0 to 1. Unscored where no judge gave one, with the first reason.

        ``evidence`` has each judge's score and reasons, the digest of the prompt, and what it cost. Raises
        ``PolicyError`` and ``SandboxError``.
        """
        del task
        answers, opinions = await self._round(trajectory, panel, [None] * len(panel.judges), 0)
        for number in range(1, self.rounds + 1):
            others = [self._of_others(opinions, place) for place in range(len(opinions))]
            more, opinions = await self._round(trajectory, panel, others, number)
            answers += more
        verdict = self.verdict(trajectory, panel.identity)
        evidence: JsonObject = {
            "prompt": prompt_digest(self._question(trajectory, None, swapped=False), self.model_dump(mode="json")),
            "judges": [msgspec.to_builtins(opinion) for opinion in opinions],
            "usage": spent(answers),
        }
        scores = [opinion.score for opinion in opinions if opinion.score is not None]
        if not scores:
            reason = next(opinion.fault for opinion in opinions)
            return msgspec.structs.replace(verdict, reason=reason, evidence=evidence)
        score = sum(scores) / len(scores)
        passed = reaches(score, self.pass_at)
        return msgspec.structs.replace(verdict, status="scored", score=score, passed=passed, evidence=evidence)

    async def _round(
        self, trajectory: Trajectory, panel: Panel, others: Sequence[str | None], number: int
    ) -> tuple[list[Answer[Any]], list[Opinion]]:
        """The answers of all judges, who see what the ``others`` answered, and what follows from them."""
        wanted: type[Any] = BinaryAnswer if self.scale == "binary" else GradedAnswer
        orders = [False, True] if self.swap else [False]
        found = [
            await ask_all(
                panel,
                [self._question(trajectory, each, swapped) for each in others],
                wanted,
                f"judge/{number}/{swapped}",
            )
            for swapped in orders
        ]
        opinions = [
            self._opinion(judge, [answers[place] for answers in found]) for place, judge in enumerate(panel.judges)
        ]
        return [answer for answers in found for answer in answers], opinions

    def _question(self, trajectory: Trajectory, others: str | None, swapped: bool) -> Question:
        """The question; ``swapped`` has criteria and scale after the transcript, and the scale the other way round."""
        criteria = f"Criteria:\n{self.criteria}\n\n{EXPLAINED[self.scale][swapped]}"
        system, parts = [judging_prompt("judge")], [delimited(trajectory.content, trajectory.system_prompt)]
        (parts if swapped else system).append(criteria)
        if others is not None:
            system.append(prompt("judge_debate"))
            parts.append(others)
        return Question(
            episode_id=trajectory.trajectory_id,
            system_prompt="\n\n".join(system),
            text="\n\n".join(parts),
            schema=object_schema(reasons={"type": "string"}, verdict=ANSWERS[self.scale]),
            checks=self.checks,
        )

    def _opinion(self, judge: Judge, answers: Sequence[Answer[Any]]) -> Opinion:
        """What a judge thinks who was asked once, or in two orders."""
        fault = next((answer.fault for answer in answers if answer.value is None), None)
        scores = [self._score(answer.value.verdict) for answer in answers if answer.value is not None]
        if fault is None and None in scores:
            fault = "out_of_range"
        known = [score for score in scores if score is not None]
        if fault is None and reaches(max(known), self.pass_at) != reaches(min(known), self.pass_at):
            fault = "contradicts_itself"
        reasons = next((answer.value.reasons for answer in answers if answer.value is not None), None)
        return Opinion(judge.identity, None if fault else sum(known) / len(known), reasons, fault)

    def _score(self, answer: bool | int) -> float | None:
        if self.scale == "binary":
            return float(answer)
        return (answer - 1) / 4 if 1 <= answer <= 5 else None

    def _of_others(self, opinions: Sequence[Opinion], place: int) -> str:
        """What the other judges say, as data: their reasons may quote what the transcript demands."""
        others = [msgspec.to_builtins(opinion) for number, opinion in enumerate(opinions) if number != place]
        return between(others)
