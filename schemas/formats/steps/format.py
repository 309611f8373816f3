"""Step records: what was seen and what was done on it, a record or row per step, in fields that options name.

A data set of such records needs a profile and no code. The steps of a run are the rows of a group, the objects of a
list, or the places of several lists. What a step shows is what the action before it led to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.config import Config
from agentmill.schemas.dialects.options import WithDialect
from agentmill.schemas.format import (
    NO_FIELD,
    WRONG_KIND,
    FormatError,
    Losses,
    Origin,
    Raw,
    Read,
    decode,
    provenance,
)
from agentmill.schemas.formats.steps.paths import is_there, opened, shared_fields, value_at, without
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.conversation import RESERVED, Transcript
from agentmill.schemas.messages.dialect import read_text
from agentmill.schemas.messages.parts import number_of, renamed
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    AnyAction,
    AnyObservation,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    TextObservation,
    Trajectory,
    WebObservation,
)

CONVERTER_VERSION = "2"
NAME = "steps"
_PAGE = ("html", "axtree", "url")


class SeenFields(Config):
    """Where a step holds what the agent saw before it acted."""

    text: str | None = Field(default=None, description="path of a text")
    html: str | None = Field(default=None, description="path of the HTML of a page")
    axtree: str | None = Field(default=None, description="path of the accessibility tree of a page or screen")
    url: str | None = Field(default=None, description="path of the address of a page")
    image: str | None = Field(default=None, description="path of the path or address of an image")
    error: str | None = Field(default=None, description="path of what went wrong with the action before, if anything")

    def named(self) -> dict[str, str]:
        """The paths that are given, by what they name."""
        return {name: path for name, path in self.model_dump().items() if path is not None}


class ActionFields(Config):
    """Where a step holds what the agent did: a text, code, or a name with arguments."""

    text: str | None = Field(default=None, description="path of a text, which is read in the dialect")
    unread: Literal["message", "code"] = Field(
        default="message", description="what a text is in which the dialect finds no action"
    )
    code: str | None = Field(default=None, description="path of code")
    language: str = Field(default="python", description="the language of code")
    name: str | None = Field(default=None, description="path of the name of a call")
    arguments: str | dict[str, str | list[str]] | None = Field(
        default=None,
        description="path of an object with the arguments of the call, or the path of each by its name; of several"
        " paths, the first that has a value counts",
    )
    message: str | None = Field(default=None, description="path of the agent's message, for steps without an action")

    @model_validator(mode="after")
    def _one(self) -> ActionFields:
        given = [name for name in ("text", "code", "name") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of text, code and name, got {' and '.join(given) or 'none of them'}")
        if self.arguments is not None and self.name is None:
            raise ValueError("arguments are those of a call, whose `name` is missing")
        if self.unread != "message" and self.text is None:
            raise ValueError("unread is about `text`, which is missing")
        if not all(self.arguments_by_name().values()):
            raise ValueError("an argument has no path")
        return self

    def arguments_by_name(self) -> dict[str, list[str]]:
        """The paths of each argument, in the order in which they are tried; none if an object holds them all."""
        given = self.arguments if isinstance(self.arguments, dict) else {}
        return {name: [paths] if isinstance(paths, str) else paths for name, paths in given.items()}


class Steps(WithDialect):
    """Records of steps. They are only read."""

    of: str | None = Field(default=None, description="path of the list of steps; none: rows are steps")
    lists: list[str] = Field(
        default=[], description="fields with lists that go along together: a step has a member of each, by its name"
    )
    goal: str | None = Field(default=None, description="path of the task, in the record or in the first of its rows")
    observation: SeenFields = Field(default=SeenFields(), description="where a step holds what was seen")
    action: ActionFields = Field(default=ActionFields(text="action"), description="where a step holds what was done")
    thought: str | None = Field(default=None, description="path of what the agent thought before, in a step")
    reward: str | None = Field(default=None, description="path of the reward of the action, in a step")

    @model_validator(mode="after")
    def _one_source(self) -> Steps:
        if self.of is not None and self.lists:
            raise ValueError("`of` and `lists` both say where the steps are; expected one of them")
        return self

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The run of a record, or of the rows of one. Raises ``FormatError``: those of ``decode``; ``invalid``."""
        kept, steps, first = self._steps(decode(raw))
        transcript = Transcript()
        goal = None if self.goal is None else value_at(first, self.goal)
        if isinstance(goal, str):
            transcript.add(TextObservation(content=goal, source="user"), {})
        self._read_steps(transcript, steps)
        if transcript.turn == 0:
            raise FormatError("invalid", f"no step has an action at {_action_path(self.action)!r}")
        for paths in self._step_paths():
            if not any(is_there(step, path) for step in steps for path in paths):
                transcript.remarks[f"{NO_FIELD}{paths[0]}"] += 1
        if self.goal is not None and not is_there(first, self.goal):
            transcript.remarks[f"{NO_FIELD}{self.goal}"] += 1
        transcript.remarks.update(f"{WRONG_KIND}{kind} {path}" for kind, path in self._misread(first, steps))
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        run = Trajectory(
            trajectory_id=trajectory_id,
            content=transcript.content,
            source=source,
            extra={NAME: {**(kept if RESERVED.isdisjoint(kept) else {"row": kept}), **transcript.notes()}},
        )
        return Read(run, Losses(), remarks=transcript.remarks + link_remarks(run.content, ()))

    def _misread(self, first: Any, steps: Sequence[JsonObject]) -> Iterator[tuple[str, str]]:
        """The paths whose values are of another kind than they are named for, with what that is."""
        seen = (path for name, path in self.observation.named().items() if name != "error")
        texts = [*seen, _action_path(self.action), self.action.message, self.thought]
        if self.goal is not None and _is_other(value_at(first, self.goal), str):
            yield "text", self.goal
        for path in dict.fromkeys(path for path in texts if path is not None):
            if any(_is_other(value_at(step, path), str) for step in steps):
                yield "text", path
        arguments, reward = self.action.arguments, self.reward
        if isinstance(arguments, str) and any(_is_other(opened(value_at(step, arguments)), dict) for step in steps):
            yield "object", arguments
        if reward is not None and any(_is_other(value_at(step, reward), int, float) for step in steps):
            yield "number", reward

    def _steps(self, document: Any) -> tuple[JsonObject, list[JsonObject], Any]:
        """The fields of the whole run, its steps, and the object with its goal."""
        if self.of is None and not self.lists:
            rows = _objects(document if isinstance(document, list) else [document], "rows")
            goal = self._goal_of(rows[0])
            shared = shared_fields(rows)
            used = {path.partition(".")[0] for paths in self._step_paths() for path in paths}
            # A field that all rows happen to have the same, such as a reward of 0, is still one of each step.
            shared = {name: value for name, value in shared.items() if name not in used}
            steps = [without(row, [*shared, *goal] if _same(row, rows[0], goal) else [*shared]) for row in rows]
            return without(shared, goal), steps, rows[0]
        (record,) = _objects([document], "a record")
        goal = self._goal_of(record)
        if self.of is not None:
            steps = _objects(value_at(record, self.of), repr(self.of))
            return without(record, [self.of, *goal]), steps, record
        columns = {name: opened(record.get(name)) for name in self.lists}
        for name, column in columns.items():
            if not isinstance(column, list):
                raise FormatError("invalid", f"expected {name!r}, a list, got {column!r:.60}")
        # The longest counts, so that nothing is dropped where lists differ in length.
        n = max(map(len, columns.values()))
        steps = [{name: column[i] for name, column in columns.items() if i < len(column)} for i in range(n)]
        return without(record, [*self.lists, *goal]), steps, record

    def _goal_of(self, first: JsonObject) -> tuple[str, ...]:
        """The path of the goal, if it is a text: it is in the run, and nowhere else."""
        return (self.goal,) if self.goal is not None and isinstance(value_at(first, self.goal), str) else ()

    def _read_steps(self, transcript: Transcript, steps: Sequence[JsonObject]) -> None:
        """Add what each step shows and what was done on it. What else it holds is kept with its first item.

        What a step without items holds is kept with the item before it, or else with the first one.
        """
        seen = [self._seen(step) for step in steps]
        call_id = None
        waiting: JsonObject = {}
        for place, step in enumerate(steps):
            shown, taken = seen[place]
            actions, used = self._done(step)
            rest = without(step, [*taken, *used])
            # A step that shows nothing and does nothing may still say something.
            if not shown and not actions:
                if transcript.rest:
                    transcript.rest[-1] = _together(transcript.rest[-1], rest)
                else:
                    waiting = _together(waiting, rest)
                continue
            rest, waiting = _together(rest, waiting), {}
            for item in shown:
                transcript.add(msgspec.structs.replace(item, tool_call_id=call_id), rest)
                rest = {}
            call_id = None
            transcript.turn += bool(actions)
            for action in actions:
                # What the next step shows is the result of this action, and only then the two can be linked.
                last = action is actions[-1] and place + 1 < len(steps) and seen[place + 1][0]
                if last and isinstance(action, ApiAction | CodeAction):
                    call_id = transcript.call_id(None, rest)
                    action = msgspec.structs.replace(action, tool_call_id=call_id)
                transcript.add(action, rest)
                rest = {}

    def _seen(self, step: JsonObject) -> tuple[list[AnyObservation], list[str]]:
        """The observations of a step, and the paths whose values they hold."""
        paths = self.observation.named()
        found = {name: value_at(step, path) for name, path in paths.items()}
        texts = {name: value for name, value in found.items() if isinstance(value, str) and name != "error"}
        error = _is_error(found.get("error"))
        taken = [paths[name] for name in texts]
        image = ImageObservation(content=texts["image"], source="environment") if texts.get("image") else None
        items: list[AnyObservation] = []
        if "text" in texts:
            items.append(TextObservation(content=texts["text"], source="environment", error=error))
        if not texts.keys().isdisjoint(_PAGE):
            html, axtree, url = map(texts.get, _PAGE)
            items.append(WebObservation(html=html, axtree=axtree, url=url, image_observation=image, error=error))
        elif image is not None:
            items.append(msgspec.structs.replace(image, error=error))
        return items, taken + ([paths["error"]] if items and found.get("error") is True else [])

    def _done(self, step: JsonObject) -> tuple[list[AnyAction], list[str]]:
        """The actions of a step, and the paths whose values they hold."""
        thought = _text_at(step, self.thought)
        message = _text_at(step, self.action.message)
        actions, taken = self._acted(step)
        if message and not actions:
            actions, taken = [MessageAction(content=message)], [str(self.action.message)]
        if thought and not actions:
            actions, taken = [MessageAction(content=thought)], [str(self.thought)]
        elif thought and actions[0].description is None:
            actions[0] = msgspec.structs.replace(actions[0], description=thought)
            taken = [*taken, str(self.thought)]
        reward = number_of(value_at(step, self.reward)) if self.reward is not None else None
        if reward is not None and actions:
            actions[-1] = msgspec.structs.replace(actions[-1], reward=reward)
            taken = [*taken, str(self.reward)]
        return actions, taken

    def _acted(self, step: JsonObject) -> tuple[list[AnyAction], list[str]]:
        path = _action_path(self.action)
        value = _text_at(step, path)
        if not value:
            return [], []
        if self.action.code is not None:
            return [CodeAction(language=self.action.language, content=value)], [path]
        if self.action.text is not None:
            parsed = read_text(self.chosen_dialect, value) if self.chosen_dialect is not None else None
            if parsed is not None:
                return list(parsed.actions), [path]
            if self.action.unread == "message":
                return [MessageAction(content=value)], [path]
            return [CodeAction(language=self.action.language, content=value)], [path]
        kwargs, taken = _arguments(step, self.action, path)
        return [ApiAction(function=value, kwargs=kwargs)], [path, *taken]

    def _step_paths(self) -> list[list[str]]:
        """The paths inside of a step that the options name; those of one list are tried in turn."""
        action = self.action
        single = [*self.observation.named().values(), _action_path(action), action.message, self.thought, self.reward]
        single += [action.arguments] if isinstance(action.arguments, str) else []
        return [[path] for path in single if path is not None] + list(action.arguments_by_name().values())


def _together(rest: JsonObject, more: JsonObject) -> JsonObject:
    """``rest`` with the fields of both; those of ``more`` that differ from it under the same name get names of their
    own.
    """
    new = {name: value for name, value in more.items() if name not in rest or rest[name] != value}
    rest.update(renamed(new, rest))
    return rest


def _arguments(step: JsonObject, fields: ActionFields, name: str) -> tuple[JsonObject, list[str]]:
    """The arguments of a call, and the paths whose values they are. The name itself is no argument."""
    if isinstance(fields.arguments, str):
        given = opened(value_at(step, fields.arguments))
        if not isinstance(given, dict):
            return {}, []
        inside = name.removeprefix(f"{fields.arguments}.")
        return {key: value for key, value in given.items() if key != inside or inside == name}, [fields.arguments]
    kwargs, taken = {}, []
    for key, paths in fields.arguments_by_name().items():
        for path in paths:
            if (value := value_at(step, path)) not in (None, ""):
                kwargs[key] = value
                taken.append(path)
                break
    return kwargs, taken


_NO_ERROR = ("", "0", "false", "nan", "no", "none", "null")
"""What a cell of a table has where there was no error, in lower case."""


def _is_error(given: Any) -> bool:
    return given.strip().lower() not in _NO_ERROR if isinstance(given, str) else bool(given)


def _text_at(step: JsonObject, path: str | None) -> str | None:
    value = value_at(step, path) if path is not None else None
    return value if isinstance(value, str) else None


def _is_other(value: Any, *kinds: type) -> bool:
    """Whether there is a value, and of none of these kinds."""
    # Tables fill up what is missing with an empty value of some type.
    empty = value is None or value == "" or value == [] or value == {}
    return not empty and (type(value) is bool or not isinstance(value, kinds))


def _action_path(fields: ActionFields) -> str:
    return fields.text or fields.code or fields.name or ""


def _objects(value: Any, what: str) -> list[JsonObject]:
    value = opened(value)
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise FormatError("invalid", f"expected {what}: objects, one or more, got {value!r:.60}")
    return value


def _same(row: JsonObject, first: JsonObject, paths: Sequence[str]) -> bool:
    return all(value_at(row, path) == value_at(first, path) for path in paths)
