"""``imagine``: a model writes whole runs, what the environment answers included.

From earlier runs as seeds (Simia, arXiv:2511.01824), from a task and the rules of its environment with the mistakes of
the agent and their correction (AgentRefine, arXiv:2501.01702), or from a description alone (Synatra, arXiv:2409.15637).
What the environment would say is made up, so it is marked as ``synthetic``; whether the task is solved nobody knows
before a verifier judges it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from string import Template
from typing import Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS, TOOL_TEXTS, tool_list
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyItem, Generation, Outcome, TextObservation, Trajectory, Usage
from agentmill.synthesis.environments import DESCRIBED
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies.mistakes import EXPERT
from agentmill.synthesis.policies.policy import PolicyError
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.episode import EpisodePlan, begin, extra_of
from agentmill.synthesis.rollouts.llm_calls import total, words_of
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.retrieval import Retrieval, retold
from agentmill.synthesis.rollouts.scaffold import Frame, frame
from agentmill.synthesis.rollouts.step import ACTOR, within
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.imagined_rollout import Ending, Fault, SimulatedRollout, items_of
from agentmill.synthesis.strategies.memory import retrieved

OF_EPISODES = ("constrain", "max_invalid", "context", "keep_turns", "context_tokens")


class Imagine(Retrieval, Attempts):
    """``k`` trajectories of a task that the actor writes whole, as JSON.

    ``agentmill.synthesis.strategies.imagined_rollout`` has the form. A turn that breaks a rule is reported to the
    writer, which goes on behind the turns before it, at most ``repairs`` times. With ``check: world`` each action is
    carried out in the real environment, too, and must be accepted.
    """

    repairs: int = Field(default=3, ge=0, description="how often a writer may go on behind a faulty turn")
    check: Literal["declared", "world"] = Field(
        default="declared", description="calls as their tools declare them, or whatever the real environment accepts"
    )
    mistakes: int = Field(
        default=0, ge=0, description="mistakes that the agent is to make and to correct; they are marked as errors"
    )

    @model_validator(mode="after")
    def _what_fits(self) -> Imagine:
        given = next((name for name in OF_EPISODES if self._differs(name)), None)
        if given is not None:
            raise ValueError(f"`{given}` is for episodes in an environment; these are generated at once, leave it out")
        return self

    async def explore(self, exploration: Exploration, plan_id: str) -> AsyncIterator[Trajectory]:
        """Yield the run with this id. Raises ``GenerationError`` for one that stays faulty, ``PolicyError``.

        An expert, which stands in for a writer, plays in the environment.
        """
        plan = self.plan_of(exploration, plan_id)
        if exploration.policies[ACTOR].name == EXPERT:
            yield await self.play(exploration, plan)
            return
        # An environment that is only described cannot be made.
        in_words = exploration.spec.family == DESCRIBED and self.check == "declared"
        environment = None if in_words else exploration.make_environment()
        try:
            work = self._written(plan, exploration, environment)
            run = await within(plan.timeout_s, work, exploration.refused_s)
        except TimeoutError as error:
            raise PolicyError("timeout", f"the run was not written within {plan.timeout_s:g} s") from error
        finally:
            if environment is not None:
                environment.close()
        yield run

    async def _written(
        self, plan: EpisodePlan, exploration: Exploration, environment: Environment | None
    ) -> Trajectory:
        shown = _frame(plan, exploration, environment)
        opening = _opening(plan, environment)
        script = SimulatedRollout(
            shown.tools, environment if self.check == "world" else None, plan.max_turns, mistakes=self.mistakes > 0
        )
        request = self._request(plan, exploration, shown, opening)
        faults: list[JsonObject] = []
        last: Fault | None = None
        usage = Usage()
        while True:
            content = [TextObservation(content=_going_on(request, script, last), source="user")]
            # Another seed after each fault: the same one could bring the same fault.
            seed = derive_seed(plan.seed, plan.trajectory_id, len(faults))
            writer = exploration.policies[ACTOR]
            reply, cost = await words_of(writer, plan.trajectory_id, prompt("imagine_system"), content, seed)
            usage = total(usage, cost)
            try:
                ending = script.take(reply.content)
            except Fault as fault:
                turn = len(script.turns) + 1
                faults.append({"turn": turn, "reason": fault.reason, "fault": fault.detail, "text": reply.content})
                if len(faults) > self.repairs:
                    what = "the ending" if script.finished else f"turn {turn}"
                    detail = f"{what} is still faulty after {self.repairs} repairs: {fault.detail}"
                    raise GenerationError(fault.reason, detail, faults) from fault
                last = fault
            else:
                extra = {**extra_of(plan), **_said_of(script, ending, faults)}
                return _trajectory(plan, exploration, shown, [*opening, *items_of(script.turns)], extra, usage)

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        found = retrieved(exploration, self, attempt, one_per_task=False)
        identity = f"{self.scaffold}:{self.check}:{self.mistakes}:{self.repairs}:{digest(found)}"
        plan = self.plan(exploration, "imagine", identity, attempt=attempt)
        return msgspec.structs.replace(plan, extra={"recalls": found} if found else {})

    def _request(self, plan: EpisodePlan, exploration: Exploration, shown: Frame, opening: Sequence[AnyItem]) -> str:
        library, found = exploration.library, plan.extra.get("recalls", [])
        examples = [retold(library.get(name)) for name in found] if library is not None else []
        given = {
            "rules": shown.system_prompt,
            "tools": tool_list(shown.tools, TOOL_TEXTS["json"]) if shown.tools else "",
            "examples": prompt("imagine_examples").replace("{runs}", "\n\n".join(examples)) if examples else "",
            "task": plan.task.instruction,
            "start": "\n".join(str(getattr(item, "content", "")) for item in opening[1:]),
            "action": '{"name": the tool, "arguments": {...}}, or a text to the user' if shown.tools else "a command",
            "mistakes": prompt("imagine_mistakes").replace("{number}", str(self.mistakes)) if self.mistakes else "",
            "max_turns": str(plan.max_turns),
        }
        written = Template(prompt("imagine_request")).substitute(given)
        return re.sub(r"\n{3,}", "\n\n", written).strip()


def _frame(plan: EpisodePlan, exploration: Exploration, environment: Environment | None) -> Frame:
    """The prompt and the tools of the agent: from a live environment, or from its description."""
    if environment is not None:
        return frame(plan.scaffold, environment)
    spec = exploration.spec
    return Frame(system_prompt=spec.source, tools=spec.tools if plan.scaffold in SCAFFOLD_FORMATS else [])


def _opening(plan: EpisodePlan, environment: Environment | None) -> list[AnyItem]:
    if environment is not None:
        return begin(plan, environment)
    return [TextObservation(content=plan.task.instruction, source="user")]


def _going_on(request: str, script: SimulatedRollout, fault: Fault | None) -> str:
    """What the writer is asked: at first the run, then what follows the turns that stand, or the ending alone."""
    if fault is None:
        return request
    stands = "\n".join(msgspec.json.encode(turn).decode() for turn in script.turns) or "(none)"
    number = str(len(script.turns) + 1)
    resumed = Template(prompt("imagine_ending" if script.finished else "imagine_resume"))
    given = {"stands": stands, "number": number, "written": fault.written, "fault": fault.detail}
    return f"{request}\n\n{resumed.substitute(given)}"


def _said_of(script: SimulatedRollout, ending: Ending | None, faults: Sequence[JsonObject]) -> JsonObject:
    """What the writer claims of the run, the mistakes that it marked in it, and what it had to repair."""
    repaired = [{name: fault[name] for name in ("turn", "reason", "fault")} for fault in faults]
    marked = sum(turn.error for turn in script.turns)
    return {"claim": msgspec.to_builtins(ending), "mistakes": marked, "repaired": repaired}


def _trajectory(
    plan: EpisodePlan,
    exploration: Exploration,
    shown: Frame,
    content: list[AnyItem],
    extra: JsonObject,
    usage: Usage,
) -> Trajectory:
    """The run as a record. Its outcome is unknown; what the writer claims of it is in ``extra``."""
    writer = exploration.policies[ACTOR]
    cut = extra["claim"] is None
    return Trajectory(
        trajectory_id=plan.trajectory_id,
        content=content,
        task_id=plan.task.task_id,
        environment_id=plan.task.environment_id,
        attempt=plan.attempt,
        system_prompt=shown.system_prompt,
        tools=shown.tools,
        outcome=Outcome(truncated=cut, reason="max_turns" if cut else "imagined"),
        generation=Generation(
            model=writer.model,
            revision=writer.revision,
            policy=writer.name,
            strategy=plan.strategy,
            scaffold=plan.scaffold,
            sampling=writer.sampling,
            seed=plan.seed,
            round=plan.round,
        ),
        usage=usage,
        split=plan.task.split,
        extra=extra,
    )
