"""``scorer``: the score that a reward model gives a trajectory, as a whole or after each step.

Outcome reward models score whole conversations (Ouyang et al., arXiv:2203.02155), process reward models each step
(Lightman et al., arXiv:2305.20050), whose scores become one of the whole by the last, the least or the mean of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.views.conversation import own_places
from agentmill.schemas.views.sft import Per
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.policies.reward_model import Score, score_of, scorer_of
from agentmill.synthesis.rollouts.llm_calls import all_of
from agentmill.synthesis.verifiers.judging import Panel, spent
from agentmill.synthesis.verifiers.verifier import ModelVerifier

Whole = Literal["last", "min", "mean"]


class ScorerVerifier(ModelVerifier):
    """The score of a reward model, as train_reward makes it: of each trajectory, or of its steps."""

    asks_scorer: ClassVar[bool] = True

    name: str = "scorer"
    rows: Per = Field(default="trajectory", description="score the trajectory once, or after each of its own steps")
    whole: Whole = Field(
        default="last",
        description="rows: step: the score of the trajectory is that of its last step, the least, or the mean",
    )
    pass_at: float | None = Field(default=None, description="the score that passes; by default nothing is decided")

    @model_validator(mode="after")
    def _steps_to_join(self) -> ScorerVerifier:
        if self.rows == "trajectory" and self.whole != "last":
            raise ValueError("`whole` goes with `rows: step`; a trajectory that is scored once has one score")
        return self

    def most_answers(self, turns: int | None, judges: int) -> int | None:
        """One score, or one after each turn."""
        del judges
        return 1 if self.rows == "trajectory" else turns

    async def judge(self, task: Task | None, trajectory: Trajectory, panel: Panel) -> list[Verdict]:
        """The score as the model gives it, without bounds. ``evidence`` has the model, tokens, and the digest of them.

        Unscored as ``too_long``, ``template``, ``malformed``, ``no_step``, ``no_messages``, or for what the view has
        against the trajectory that the model was trained with; of the whole also where a step that counts has no score.
        Raises ``PolicyError`` where the model cannot be asked.
        """
        del task
        [judge] = panel.judges
        scorer = scorer_of(judge.policy)
        whole = self.verdict(trajectory, f"scorer:{judge.identity}")
        try:
            dialogue = scorer.shown.conversation(trajectory)
        except Unused as error:
            return [msgspec.structs.replace(whole, reason=error.reason)]
        if not dialogue:
            return [msgspec.structs.replace(whole, reason="no_messages")]
        own = own_places(dialogue, trajectory.content)
        if self.rows == "step" and not own:
            return [msgspec.structs.replace(whole, reason="no_step")]
        places = own if self.rows == "step" else [len(dialogue) - 1]
        found = await all_of([score_of(scorer, trajectory, dialogue[: place + 1]) for place in places])
        about: JsonObject = {"model": scorer.model, "revision": scorer.revision}
        spending = {**about, "usage": spent([each for each in found if isinstance(each, Score)])}
        if self.rows == "trajectory":
            return [self._filled(whole, found[0], spending)]
        steps = [
            self._filled(msgspec.structs.replace(whole, item=dialogue[place].step), each, about)
            for place, each in zip(places, found, strict=True)
        ]
        return [self._joined(whole, steps, spending), *steps]

    def _filled(self, verdict: Verdict, found: Score | str, evidence: JsonObject) -> Verdict:
        if isinstance(found, str):
            return msgspec.structs.replace(verdict, reason=found, evidence=evidence)
        evidence = {**evidence, "tokens": found.tokens, "rendering": found.rendering}
        return self._decided(verdict, found.value, evidence)

    def _joined(self, verdict: Verdict, steps: Sequence[Verdict], evidence: JsonObject) -> Verdict:
        """The verdict on the whole; unknown if the score of a step that counts is."""
        counted = steps[-1:] if self.whole == "last" else steps
        evidence = {**evidence, "steps": len(steps), "unscored": sum(step.score is None for step in steps)}
        unknown = next((step.reason for step in counted if step.score is None), None)
        if unknown is not None:
            return msgspec.structs.replace(verdict, reason=unknown, evidence=evidence)
        scores = [step.score for step in counted if step.score is not None]
        return self._decided(verdict, min(scores) if self.whole == "min" else sum(scores) / len(scores), evidence)

    def _decided(self, verdict: Verdict, score: float, evidence: JsonObject) -> Verdict:
        passed = None if self.pass_at is None else reaches(score, self.pass_at)
        return msgspec.structs.replace(verdict, status="scored", score=score, passed=passed, evidence=evidence)
