"""Benchmarks and data as what is compared of them: entries and samples, of tasks, of trajectories and of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field

from agentmill.pipelines.canonical_form import Act, act_of, texts_in
from agentmill.pipelines.leak_features import Entry, Sample
from agentmill.pipelines.quality import texts_of
from agentmill.pipelines.scene_form import statements_of
from agentmill.pipelines.sources.files import RawFile
from agentmill.pipelines.sources.reading import decoded, read_errors, rows_of
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.profiles.fields import at
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import (
    Action,
    AnyAction,
    AnyItem,
    ApiAction,
    MessageAction,
    TextObservation,
    Trajectory,
)
from agentmill.synthesis.rollouts.step import acts

COLUMNS = ["trajectory_id", "content", "task_id", "system_prompt"]
"""The columns of trajectories that are compared."""


class BenchmarkFields(Config):
    """Where the rows of a benchmark file hold what is compared; a path is field names joined by dots."""

    instruction: str | None = Field(default="instruction", description="a text, or chat messages; null: there is none")
    answer: str | None = Field(default=None, description="a text, or a list of texts")
    actions: str | None = Field(
        default=None, description="calls {name, arguments} or {function: {name, arguments}}, or commands as texts"
    )
    id: str | None = Field(default=None, description="the id of a row; by default its number")

    def given(self) -> list[str]:
        """The paths of what is compared."""
        return [path for path in (self.instruction, self.answer, self.actions) if path is not None]


def sample_of(record: Trajectory | Task) -> Sample:
    """What is compared of a trajectory or a task."""
    if isinstance(record, Task):
        return entry_of("", record).sample()
    agent = _agent_actions(record)
    asked, others = list[AnyItem](), list[AnyItem]()
    for item in record.content:
        (asked if _asks(item) else others).append(item)
    before = _before(record, agent)
    prompt = msgspec.structs.replace(record, content=[*asked, *before])
    return Sample(
        task_id=record.task_id,
        asked=tuple(item.content for item in asked if isinstance(item, TextObservation)),
        prompt=tuple(filter(None, texts_of(prompt))),
        shown=tuple(filter(None, texts_of(msgspec.structs.replace(record, content=others, system_prompt=None)))),
        acts=_compared(agent),
        scene=_scene(before),
    )


def _before(record: Trajectory, agent: Sequence[AnyAction]) -> list[AnyItem]:
    """What an environment showed before the first action."""
    first = min((item.turn for item in agent if item.turn), default=1)
    items = (item for item in record.content if not isinstance(item, Action) and item.turn < first)
    return [item for item in items if not _asks(item)]


def _scene(before: Iterable[AnyItem]) -> tuple[str, ...]:
    return tuple(item.content for item in before if isinstance(item, TextObservation) and item.content)


def entry_of(benchmark: str, record: Trajectory | Task) -> Entry:
    """A task or a trajectory as an entry of a benchmark; what the agent writes is the answer of a trajectory."""
    if isinstance(record, Task):
        gold, entry_id, instruction = record.gold or [], record.task_id, record.instruction
        scene = tuple(statements_of(record.initial_state))
    else:
        gold, entry_id = _agent_actions(record), record.trajectory_id
        scene = _scene(_before(record, gold))

        asked = (item.content for item in record.content if isinstance(item, TextObservation) and _asks(item))
        instruction = next(asked, "")
    return Entry(
        benchmark=benchmark,
        entry_id=entry_id,
        task_id=record.task_id,
        instruction=instruction,
        answers=tuple(text for action in gold for text in texts_in(action)),
        acts=_compared(gold),
        scene=scene,
        stated=isinstance(record, Task),
    )


def _asks(item: AnyItem) -> bool:
    return isinstance(item, TextObservation) and item.source == "user"


def _agent_actions(record: Trajectory) -> list[AnyAction]:
    return [item for item in record.content if isinstance(item, AnyAction) and acts(item)]


def _compared(actions: Iterable[AnyAction]) -> tuple[Act, ...]:
    return tuple(act for act in map(act_of, actions) if act.values)


def file_entries(file: RawFile, fields: BenchmarkFields) -> Iterator[Entry]:
    """The entries of a file, one for each row.

    Raises ``UserError`` for a file without rows, for a row that is no JSON object or holds something else than is
    expected, and where no row has a field that was named.
    """
    name, missing, known = Path(file.path).name, set(fields.given()), set[str]()
    empty = True
    with read_errors(file.path):
        for number, row in enumerate(rows_of(file.path, file.kind), 1):
            document = None if row.fault else decoded(row.data)
            if not row.data.strip():
                continue
            empty = False
            if not isinstance(document, dict):
                raise UserError(
                    f"{file.path}, row {number}: expected a JSON object, found {row.fault or row.data[:40]!r}\n"
                    "give a benchmark as JSON lines, a JSON list, CSV or Parquet, with an object or row for each entry",
                    ErrorCode.LINE_MALFORMED,
                )
            known |= document.keys()
            missing -= {path for path in missing if at(document, path) is not None}
            yield _row_entry(f"{file.path}, row {number}", name, number, document, fields)
    if empty:
        raise UserError(f"{file.path} holds no rows, so nothing can be compared with it", ErrorCode.NO_RECORDS)
    for path in sorted(missing):
        raise UserError(
            f"{file.path}: no row has the field {path!r}.{near_match(path, known)}\n"
            f"name it in `fields`; the rows have {', '.join(sorted(known))}",
            ErrorCode.FIELD_MISSING,
        )


def _row_entry(where: str, benchmark: str, number: int, row: Any, fields: BenchmarkFields) -> Entry:
    def value(path: str | None) -> Any:
        return None if path is None else at(row, path)

    found = value(fields.id)
    actions = _actions(where, value(fields.actions), fields.actions)
    return Entry(
        benchmark=benchmark,
        entry_id=f"row {number}" if found is None else str(found),
        task_id=None if found is None else str(found),
        instruction="\n".join(_texts(where, value(fields.instruction), fields.instruction)),
        answers=(*_texts(where, value(fields.answer), fields.answer), *(text for a in actions for text in texts_in(a))),
        acts=_compared(actions),
    )


def _texts(where: str, value: Any, path: str | None) -> list[str]:
    """A text, a number, chat messages of which those of the user count, or a list of them."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, int | float):
        return [str(value)]
    if isinstance(value, list):
        messages = [each for each in value if isinstance(each, dict) and "role" in each]
        rest = [each for each in value if each not in messages]
        users = [each.get("content") for each in messages if each["role"] == "user"]
        return [text for each in [*users, *rest] for text in _texts(where, each, path)]
    raise _unexpected(where, value, path, "a text, a list of texts, or chat messages")


def _actions(where: str, value: Any, path: str | None) -> list[AnyAction]:
    """Calls and commands; in CSV a list is a text of JSON."""
    if value is None:
        return []
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = decoded(value.encode())
    if not isinstance(value, list):
        raise _unexpected(where, value, path, "a list of calls {name, arguments} or of commands")
    return [_action(where, each, path) for each in value]


def _action(where: str, value: Any, path: str | None) -> AnyAction:
    if isinstance(value, str):
        return MessageAction(content=value)
    call = value.get("function") if isinstance(value, dict) and isinstance(value.get("function"), dict) else value
    if isinstance(call, dict):
        name = call.get("name", call.get("function"))
        arguments = call.get("arguments", call.get("kwargs", {}))
        if isinstance(arguments, str):
            arguments = decoded(arguments.encode())
        if isinstance(name, str) and isinstance(arguments, dict):
            return ApiAction(function=name, kwargs=arguments)
    raise _unexpected(where, value, path, "a call {name, arguments}, or a command as a text")


def _unexpected(where: str, value: Any, path: str | None, expected: str) -> UserError:
    return UserError(
        f"{where}: {path!r} is {msgspec.json.encode(value).decode()[:60]}, expected {expected}\n"
        "correct the file, or name another field in `fields`",
        ErrorCode.VALUE_MALFORMED,
    )
