"""``backfill``: a model writes the missing thoughts of fixed actions, and those are kept that are grounded.

The thought comes before the action that was recorded, from the conversation up to then (AgentBank, arXiv:2410.07706;
SMART, arXiv:2502.11435). With alternatives of the same state it weighs them against the action, as the reflections of
Early Experience (arXiv:2510.08558) do. The trajectory stays as it is: thoughts are labels of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Action, AnyItem, Trajectory
from agentmill.schemas.records.verdict import Label
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.delimiting import delimited, judging_prompt
from agentmill.synthesis.rollouts.llm_calls import TRIES
from agentmill.synthesis.step_labels import turn_key
from agentmill.synthesis.step_values import Step, steps_of
from agentmill.synthesis.verifiers.grounding import fault_of
from agentmill.synthesis.verifiers.judge import ANSWERS, BinaryAnswer
from agentmill.synthesis.verifiers.judging import Answer, Panel, Question, ask_all, object_schema, prompt_digest, spent
from agentmill.synthesis.verifiers.verifier import Finding, ModelVerifier

WRITTEN = "written"
"""What the steps are counted as that have got a thought."""

Alternatives = Mapping[int, Sequence[Sequence[AnyItem]]]
"""Other actions with what they led to, by the turn in whose place they were tried."""


class ThoughtAnswer(Record):
    """What a writer answers."""

    thought: str


class BackfillVerifier(ModelVerifier):
    """Thoughts before fixed actions as labels of steps, and a verdict on each thought. The first model writes them."""

    writes_labels: ClassVar[bool] = True

    name: str = "thought"
    steps: Literal["missing", "all"] = Field(
        "missing", description="the agent's own steps that have no thought, or all of them, whose thoughts are replaced"
    )
    longest: int = Field(1000, ge=1, description="characters of a thought at most")

    def most_answers(self, turns: int | None, judges: int) -> int | None:
        """On each turn; what is asked again counts."""
        del judges
        return None if turns is None else turns * TRIES

    async def judge(self, task: Task | None, trajectory: Trajectory, panel: Panel) -> Sequence[Finding]:
        """As ``write``, without alternatives."""
        del task
        return await self.write(trajectory, panel, {})

    async def write(self, trajectory: Trajectory, panel: Panel, alternatives: Alternatives) -> list[Finding]:
        """A verdict on each thought that was asked for, a label with each that is kept, and a verdict on the whole.

        The score of the whole is the share of the own steps that have a thought then; unscored (``no_steps``) without
        own steps. Raises ``PolicyError``.
        """
        own = [step for step in steps_of(trajectory) if step.own]
        asked = [step for step in own if self.steps == "all" or not has_thought(trajectory.content, step.turn)]
        found: list[Finding] = []
        answers: list[Answer[Any]] = []
        for step in asked:
            others = distinct_turns(trajectory.content, step.turn, alternatives.get(step.turn, ()))
            found += await self._on_step(trajectory, panel, step, others, answers)
        written = sum(isinstance(each, Label) for each in found)
        evidence: JsonObject = {
            "steps": len(own),
            "asked": len(asked),
            WRITTEN: written,
            "usage": spent(answers),
            **({"prompt": self._digest(trajectory, asked[0], bool(alternatives))} if asked else {}),
        }
        whole = msgspec.structs.replace(self.verdict(trajectory, writer_of(panel)), evidence=evidence)
        if not own:
            return [msgspec.structs.replace(whole, reason="no_steps")]
        share = (len(own) - len(asked) + written) / len(own)
        return [msgspec.structs.replace(whole, status="scored", score=share, passed=reaches(share, 1)), *found]

    async def _on_step(
        self,
        trajectory: Trajectory,
        panel: Panel,
        step: Step,
        others: Sequence[Sequence[AnyItem]],
        answers: list[Answer[Any]],
    ) -> list[Finding]:
        writer, salt = Panel(panel.judges[:1], panel.seed), f"thought/{step.item}"
        question = self._question(trajectory, step, others)
        [answer] = await ask_all(writer, [question], ThoughtAnswer, salt)
        answers.append(answer)
        verdict = msgspec.structs.replace(
            self.verdict(trajectory, writer_of(panel)), item=step.item, evidence={"alternatives": len(others)}
        )
        if answer.value is None:
            return [msgspec.structs.replace(verdict, reason=answer.fault)]
        thought = answer.value.thought.strip()
        reason = fault_of(thought, trajectory, step.turn, self.longest)
        if reason is None and len(panel.judges) > 1:
            reason = await self._doubt(trajectory, panel, step, thought, answers)
        if reason is not None:
            evidence = {**verdict.evidence, "thought": thought}
            scored = msgspec.structs.replace(verdict, status="scored", score=0.0, passed=False)
            return [msgspec.structs.replace(scored, reason=reason, evidence=evidence)]
        label = Label(
            trajectory_id=trajectory.trajectory_id,
            name=self.name,
            value=thought,
            labeller=writer_of(panel),
            item=step.item,
        )
        return [msgspec.structs.replace(verdict, status="scored", score=1.0, passed=True), label]

    async def _doubt(
        self, trajectory: Trajectory, panel: Panel, step: Step, thought: str, answers: list[Answer[Any]]
    ) -> str | None:
        """Why judges do not let a thought pass: most find it ungrounded, or none has an answer."""
        judges = Panel(panel.judges[1:], panel.seed)
        question = Question(
            episode_id=trajectory.trajectory_id,
            system_prompt=judging_prompt("backfill_judge"),
            text=f"Before the action:\n{_before(trajectory, step)}\n\n"
            f"The thought and the action:\n{delimited(actions_of(trajectory.content, step.turn, thought))}",
            schema=object_schema(reasons={"type": "string"}, verdict=ANSWERS["binary"]),
        )
        given = await ask_all(judges, [question] * len(judges.judges), BinaryAnswer, f"grounded/{step.item}")
        answers += given
        verdicts = [answer.value.verdict for answer in given if answer.value is not None]
        if not verdicts:
            return "not_judged"
        return None if sum(verdicts) * 2 > len(verdicts) else "judged_ungrounded"

    def _question(self, trajectory: Trajectory, step: Step, others: Sequence[Sequence[AnyItem]]) -> Question:
        tried = "".join(f"\n\nInstead of it, and what it led to:\n{delimited(each)}" for each in others)
        contrast = f"\n\n{prompt('backfill_contrast')}" if others else ""
        return Question(
            episode_id=trajectory.trajectory_id,
            system_prompt=f"{judging_prompt('backfill')}{contrast}",
            text=f"Before the action:\n{_before(trajectory, step)}\n\n"
            f"The action:\n{delimited(actions_of(trajectory.content, step.turn))}{tried}",
            schema=object_schema(thought={"type": "string"}),
        )

    def _digest(self, trajectory: Trajectory, step: Step, contrast: bool) -> str:
        return prompt_digest(self._question(trajectory, step, [[]] if contrast else []), self.model_dump(mode="json"))


def writer_of(panel: Panel) -> str:
    """Who wrote, as labels name it."""
    return f"writer:{panel.judges[0].identity}"


def has_thought(content: Sequence[AnyItem], turn: int) -> bool:
    """Whether the agent thought anything before it acted, in words that were shown or hidden."""
    actions = [item for item in content if item.turn == turn and isinstance(item, Action)]
    return any((item.description or item.reasoning_content or "").strip() for item in actions)


def actions_of(content: Sequence[AnyItem], turn: int, thought: str | None = None) -> list[AnyItem]:
    """The actions of a turn, with ``thought`` before them and no other."""
    actions = [item for item in content if item.turn == turn and isinstance(item, Action)]
    return [
        msgspec.structs.replace(item, description=None, reasoning_content=None if number else thought)
        for number, item in enumerate(actions)
    ]


def distinct_turns(
    content: Sequence[AnyItem], turn: int, alternatives: Sequence[Sequence[AnyItem]]
) -> list[Sequence[AnyItem]]:
    """The alternatives that do something else than the turn, each once."""
    found: dict[str, Sequence[AnyItem]] = {}
    own = turn_key("action", content, turn)
    for each in alternatives:
        key = turn_key("action", each, turn)
        if key is not None and key != own:
            found.setdefault(key, each)
    return list(found.values())


def _before(trajectory: Trajectory, step: Step) -> str:
    return delimited([item for item in trajectory.content if item.turn < step.turn], trajectory.system_prompt)
