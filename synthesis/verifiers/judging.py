"""Asking models for verdicts: one structured answer of one judge, with all that an answer may be wrong in.

An answer has to be one JSON object of a given type. Servers are asked to enforce its schema; what does not fit all the
same is asked again, and then counts as no verdict, never as a guess.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyItem, ApiAction, MessageAction, TextObservation, Tool, Usage
from agentmill.synthesis.json_objects import answer_in, objects_in
from agentmill.synthesis.policies.mistakes import EXPERT
from agentmill.synthesis.policies.model_client import REFUSED, Used
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, Denied, Policy, PolicyError, Turn
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.llm_calls import TRIES, all_of, total, turn_of
from agentmill.synthesis.sandbox import Session, pool

A = TypeVar("A", bound=msgspec.Struct)

RUN_PYTHON = Tool(
    name="run_python",
    description="Run Python code in a sandbox. Returns what it prints, and the value of its last expression.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
MOST_OUTPUT = 8_000
"""Characters of the output of a check that a judge is shown."""


class Judge(msgspec.Struct, frozen=True):
    """A model that judges; ``identity`` is what verdicts call it: its name and revision."""

    identity: str
    policy: Policy


class Panel(msgspec.Struct, frozen=True):
    """The judges of a step, and the seed that theirs derive from."""

    judges: Sequence[Judge]
    seed: int

    @property
    def identity(self) -> str:
        """Who decides, as verdicts say it."""
        kind = "judge" if len(self.judges) == 1 else "jury"
        return f"{kind}:{','.join(judge.identity for judge in self.judges)}"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What judges are asked of one trajectory: a system prompt, the ``text`` to judge, and the schema of an answer.

    ``checks`` is how often a judge may run code before it answers.
    """

    episode_id: str
    system_prompt: str
    text: str
    schema: JsonObject
    checks: int = 0


class Answer(msgspec.Struct, Generic[A], frozen=True):
    """What a judge answered; ``value`` is None where it gave nothing usable, and ``fault`` says why."""

    value: A | None
    usage: Usage
    fault: str | None = None


def object_schema(**properties: JsonObject) -> JsonObject:
    """The JSON Schema of an object with these fields, all of them needed and no others allowed, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def judge_name(policy: Policy) -> str:
    """How verdicts call a model: its name, and the beginning of its revision, and of its adapter's, where known."""
    revision = "+".join(part[:12] for part in policy.revision.split("+")) if policy.revision else None
    return f"{policy.model or policy.name}{f'@{revision}' if revision else ''}"


async def ask(judge: Judge, question: Question, wanted: type[A], seed: int, alone: bool = True) -> Answer[A]:
    """One judge's answer. A judge that is not ``alone`` and whose server refuses the question has none (``refused``).

    Raises ``PolicyError`` where it cannot be asked, and ``SandboxError`` where its code cannot be run.
    """
    content: list[AnyItem] = [TextObservation(content=question.text, source="user")]
    usage, fault = Usage(), None
    try:
        # An expert in the place of a judge draws its answer, and has no code to run.
        if question.checks and judge.policy.name != EXPERT:
            content, usage = await _checked(judge, question, content, seed)
        asked = content
        for attempt in range(TRIES):
            turn = await _turn(judge, question, content, derive_seed(seed, attempt), answering=True)
            usage = total(usage, turn.usage)
            value, fault = _read(turn, wanted)
            if value is not None:
                return Answer(value, usage)
            # At temperature 0 the same question has the same answer, so the next try says what was wrong.
            again = prompt("judge_again").replace("{fault}", str(fault))
            number = question.checks + attempt + 1
            answered = MessageAction(content=_text(turn) or "(nothing)", turn=number)
            content = [*asked, answered, TextObservation(content=again, source="user", turn=number)]
    except ContextOverflow:
        return Answer(None, usage, "too_long")
    except PolicyError as error:
        if alone or isinstance(error, Denied) or error.reason != REFUSED:
            raise
        return Answer(None, usage, REFUSED)
    return Answer(None, usage, fault)


async def ask_all(panel: Panel, questions: Sequence[Question], wanted: type[A], salt: str) -> list[Answer[A]]:
    """The answer of each judge to its question, asked at once. Raises as ``ask``, of several the first."""
    asked, before = [], Counter[str]()
    for judge, question in zip(panel.judges, questions, strict=True):
        # A server gives judges of one model the same answer to the same request, and a jury would be of one mind.
        again = [before[judge.identity]] if before[judge.identity] else []
        before[judge.identity] += 1
        seed = derive_seed(panel.seed, salt, question.episode_id, judge.identity, *again)
        asked.append(ask(judge, question, wanted, seed, alone=len(panel.judges) == 1))
    return await all_of(asked)


def prompt_digest(question: Question, parameters: JsonObject) -> str:
    """What tells judges of one model apart, without the transcript: a calibration holds for one of them.

    ``parameters`` are those of the verifier; what it is called makes no difference.
    """
    given = {name: value for name, value in parameters.items() if name != "name"}
    return digest("judge", question.system_prompt, question.schema, given)


def spent(answers: Sequence[Used]) -> JsonObject:
    """What answers cost together, as evidence; what no server reported is left out."""
    usage = Usage()
    for answer in answers:
        usage = total(usage, answer.usage)
    given: Mapping[str, Any] = msgspec.structs.asdict(usage)
    # Seconds differ from run to run, and evidence is the same for the same answers.
    return {name: value for name, value in given.items() if value is not None and name != "seconds"}


async def _turn(judge: Judge, question: Question, content: Sequence[AnyItem], seed: int, answering: bool) -> Turn:
    conversation = Conversation(
        episode_id=question.episode_id,
        system_prompt=question.system_prompt if answering else f"{question.system_prompt}\n\n{prompt('judge_tools')}",
        content=tuple(content),
        tools=[] if answering else [RUN_PYTHON],
        answer_schema=question.schema if answering else None,
        seed=seed,
    )
    return await turn_of(judge.policy, conversation)


async def _checked(
    judge: Judge, question: Question, content: Sequence[AnyItem], seed: int
) -> tuple[list[AnyItem], Usage]:
    """The conversation after the judge has run code, as often as it liked and may, and what that cost."""
    found, usage = list(content), Usage()
    async with AsyncExitStack() as stack:
        session: Session | None = None
        for number in range(1, question.checks + 1):
            turn = await _turn(judge, question, found, derive_seed(seed, "check", number), answering=False)
            usage = total(usage, turn.usage)
            calls = [action for action in turn.actions if isinstance(action, ApiAction)]
            if not calls:
                break
            if session is None:
                session = await stack.enter_async_context(pool(purpose="judge").async_session())
            for place, call in enumerate(calls):
                call_id = f"call{number:03d}{place:02d}"
                seen = await asyncio.to_thread(_output, session, call)
                found.append(msgspec.structs.replace(call, turn=number, tool_call_id=call_id))
                found.append(TextObservation(content=seen, source="environment", turn=number, tool_call_id=call_id))
    return found, usage


def _output(session: Session, call: ApiAction) -> str:
    code = call.kwargs.get("code")
    if call.function != RUN_PYTHON.name or not isinstance(code, str):
        return f"There is only the tool {RUN_PYTHON.name}, with the argument code."
    if not session.alive:
        session.restart()
    done = session.run(code)
    shown = [done.output, done.shown, done.error or "", "" if done.ok else f"({done.reason})"]
    return "\n".join(part for part in shown if part)[:MOST_OUTPUT] or "(no output)"


def _text(turn: Turn) -> str:
    return "\n".join(action.content for action in turn.actions if isinstance(action, MessageAction)).strip()


def _read(turn: Turn, wanted: type[A]) -> tuple[A | None, str | None]:
    """The answer in a turn, or what is wrong with it."""
    if turn.finish_reason == "length":
        return None, "cut_off"
    # Some servers do not enforce schemas, and their models write fences, thoughts or a quoted call around the object.
    text = _text(turn)
    answer = answer_in(text, wanted.__struct_encode_fields__)
    if answer is None:
        return None, "other_schema" if objects_in(text) else "unparsable"
    if answer.value is None:
        return None, "unparsable"
    try:
        return msgspec.json.decode(answer.text, type=wanted), None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None, "other_schema"
