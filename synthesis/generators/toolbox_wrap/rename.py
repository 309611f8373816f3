"""A toolbox and its tasks under other names: tools, parameters, tables, columns, the values of texts, and all that is
written about them. The database does the same with them, row for row.

Values that SQL compares by their letters (an order of texts, ``LIKE``, functions of texts) keep their names, since the
answers would be others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, MessageAction
from agentmill.synthesis.environments.toolbox.calls import Unreadable, read_command, write_command
from agentmill.synthesis.environments.toolbox.changes import Changes, new_row
from agentmill.synthesis.environments.toolbox.database import FUNCTIONS
from agentmill.synthesis.environments.toolbox.goal import Goal
from agentmill.synthesis.environments.toolbox.structure import SQL_TOKEN, SQL_WORDS
from agentmill.synthesis.environments.toolbox.toolbox import BUILT_IN, DECLINE, NEW_ID, Toolbox, Value
from agentmill.synthesis.environments.toolbox.user import LABEL, Request
from agentmill.synthesis.generators.renaming.lexicon import base_of
from agentmill.synthesis.generators.renaming.renaming import (
    Names,
    Renaming,
    Style,
    action_words,
    chosen,
    rename_call,
    renaming_of,
    texts_in,
    words_of,
)
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import plain

_BY = re.compile(r"\b(?:ORDER|GROUP)\s+BY\b", re.IGNORECASE)
_END_OF_BY = re.compile(r"[()]|\bLIMIT\b", re.IGNORECASE)
_SIGN = re.compile(r"(?<!<)[<>](?![<>])=?")
_CALL = re.compile(r"\w*\s*\(")
_ALIAS = re.compile(r"\bAS\s+(\w+)", re.IGNORECASE)
_FUNCTION = re.compile(r"\b(?:length|substr|instr|lower|upper|[lr]?trim|replace|min|max)\s*\(([^()]*)", re.IGNORECASE)
_COMPARED = re.compile(r"(\w+)?['\s]*(?<!<)[<>](?![<>])=?\s*(\w+)?")
_ANYWHERE = re.compile(r"\b(?:LIKE|GLOB|BETWEEN|DISTINCT|UNION|EXCEPT|INTERSECT)\b|\|\||\bBY\s+\d", re.IGNORECASE)

T = TypeVar("T")


def toolbox_renaming(toolbox: Toolbox, lineage: Lineage | None, style: Style, names: Names, seed: int) -> Renaming:
    """A renaming of the ``names`` of a toolbox; names that an earlier renaming replaced do not come back."""
    structure = list(_structure(toolbox))
    objects = [*structure, *_values(toolbox)]
    tools = [tool.name for tool in toolbox.tools]
    words = words_of(objects) if names != "actions" else set()
    if names != "objects":
        words |= action_words(tools, words_of(structure))
    # By base form, as a word is renamed in all its forms.
    compared = {base_of(word.lower()) for word in words_of(_compared_values(toolbox))}
    texts = [*texts_in(msgspec.to_builtins(toolbox)), *renaming_of(lineage).words]
    renaming = chosen({word for word in words if base_of(word.lower()) not in compared}, style, texts, seed)
    return renaming.with_kept([*(tools if names != "objects" else ()), *(objects if names != "actions" else ())])


def rename_toolbox(toolbox: Toolbox, renaming: Renaming) -> Toolbox:
    """The toolbox under other names."""
    texts = renaming.text
    known = {name for table in toolbox.tables for name in (table.name, *(column.name for column in table.columns))}

    def sql(statement: str) -> str:
        return _rename_sql(statement, known, renaming)

    return msgspec.structs.replace(
        toolbox,
        about=texts(toolbox.about),
        policy=texts(toolbox.policy),
        tables=tuple(_renamed(table, renaming) for table in toolbox.tables),
        rows={
            texts(name): [tuple(_rename_value(value, renaming) for value in row) for row in rows]
            for name, rows in toolbox.rows.items()
        },
        tools=tuple(
            msgspec.structs.replace(
                _renamed(tool, renaming),
                returns=sql(tool.returns),
                writes=tuple(map(sql, tool.writes)),
                requires=tuple(
                    msgspec.structs.replace(_renamed(each, renaming), query=sql(each.query)) for each in tool.requires
                ),
            )
            for tool in toolbox.tools
        ),
        rules=tuple(msgspec.structs.replace(_renamed(rule, renaming), query=sql(rule.query)) for rule in toolbox.rules),
    )


def rename_task(task: Task, renaming: Renaming) -> Task:
    """The task in the renamed toolbox: request, goal and solution; its ids are left to the caller."""
    given = msgspec.convert(task.initial_state.get("request", {"template": ""}), Request)
    request = _renamed(given, renaming)
    goal = msgspec.convert(task.goal, Goal, str_keys=True)
    states = tuple(_rename_changes(state, renaming) for state in goal.states)
    bare = msgspec.structs.replace(goal, states=())
    # A text that was put together of the request is so again: an article may be before a slot.
    as_requested = task.instruction == given.text()
    return msgspec.structs.replace(
        task,
        instruction=request.text() if as_requested else renaming.text(task.instruction),
        initial_state={**task.initial_state, "request": plain(request)}
        if "request" in task.initial_state
        else task.initial_state,
        goal=plain(msgspec.structs.replace(_renamed(bare, renaming), states=states)),
        gold=None if task.gold is None else [rename_action(action, renaming) for action in task.gold],
        constraints=[renaming.text(each) for each in task.constraints],
    )


def rename_action(action: AnyAction, renaming: Renaming) -> AnyAction:
    """A call, as such or as text, mapped; the tools that every toolbox has keep their names."""
    if isinstance(action, MessageAction):
        try:
            call = _rename_call(read_command(action.content), renaming)
        except Unreadable:
            return msgspec.structs.replace(action, content=renaming.text(action.content))
        return msgspec.structs.replace(action, content=write_command(call.function, call.kwargs))
    return _rename_call(action, renaming) if isinstance(action, ApiAction) else action


def _rename_call(call: ApiAction, renaming: Renaming) -> ApiAction:
    # The reasons to decline are a closed list.
    return call if call.function == DECLINE else rename_call(call, renaming, BUILT_IN)


def _structure(toolbox: Toolbox) -> Iterator[str]:
    """What things are called: tables, columns, parameters, and the fields of answers."""
    for table in toolbox.tables:
        yield from (table.name, table.noun)
        yield from (text for column in table.columns for text in (column.name, column.label))
    for tool in toolbox.tools:
        yield from (parameter.name for parameter in tool.parameters)
        yield from tool.columns


def _values(toolbox: Toolbox) -> Iterator[str]:
    """The texts that are in the tables, or may be."""
    for table in toolbox.tables:
        for column in table.columns:
            yield from (*column.values, *column.examples)
        yield from texts_in(list(toolbox.rows.get(table.name, ())))
    for tool in toolbox.tools:
        yield from (value for parameter in tool.parameters for value in parameter.values)


def _compared_values(toolbox: Toolbox) -> Iterator[str]:
    """The texts of columns that SQL compares by their letters."""
    text_columns = {column.name for table in toolbox.tables for column in table.columns if column.type == "text"}
    found: set[str] = set()
    for tool in toolbox.tools:
        for statement in toolbox.statements(tool):
            places = [*_sorted_by(statement), *_FUNCTION.findall(statement)]
            places += [" ".join(pair) for pair in _COMPARED.findall(statement)]
            places += _bracketed(statement)
            words = {word for place in places for word in re.findall(r"\w+", place)}
            # An alias may mean anything in the statement.
            if _ANYWHERE.search(statement) or words.intersection(_ALIAS.findall(statement)):
                words |= set(re.findall(r"\w+", statement))
            found |= text_columns & words
    for table in toolbox.tables:
        for number, column in enumerate(table.columns):
            if column.name in found:
                yield from (*column.values, *column.examples)
                yield from texts_in([row[number] for row in toolbox.rows.get(table.name, ())])


def _bracketed(statement: str) -> Iterator[str]:
    """What is in brackets right before or behind a comparison by letters."""
    for sign in _SIGN.finditer(statement):
        left, right = statement[: sign.start()].rstrip(), statement[sign.end() :].lstrip()
        if left.endswith(")"):
            yield _matched(left[::-1], ")(")
        if (opening := _CALL.match(right)) is not None:
            yield _matched(right[opening.end() - 1 :], "()")


def _matched(text: str, brackets: str) -> str:
    """The beginning of a text, as far as the bracket goes that it begins with; backwards for ``)(``."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {brackets[0]: 1, brackets[1]: -1}.get(letter, 0)
        if depth == 0:
            text = text[: place + 1]
            break
    return text[::-1] if brackets == ")(" else text


def _sorted_by(statement: str) -> Iterator[str]:
    """What a statement sorts or groups by: up to the limit, or the bracket that ends its query."""
    for by in _BY.finditer(statement):
        depth = 0
        for found in _END_OF_BY.finditer(statement, by.end()):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if depth < 0 or (depth == 0 and found[0].upper() == "LIMIT"):
                yield statement[by.end() : found.start()]
                break
        else:
            yield statement[by.end() :]


def _rename_sql(statement: str, known: set[str], renaming: Renaming) -> str:
    """A statement with its names and texts mapped, keywords and functions not."""

    def token(found: re.Match[str]) -> str:
        word = found[0]
        call = word.lower() in FUNCTIONS and statement[found.end() :].lstrip().startswith("(")
        if word == f":{NEW_ID}" or call or (word.lower() in SQL_WORDS and word not in known):
            return word
        return renaming.text(word)

    return SQL_TOKEN.sub(token, statement)


def _renamed(value: T, renaming: Renaming) -> T:
    """A struct of texts and of structs, tuples and mappings of them, all mapped. Choices of a type are no texts."""
    fields = type(value).__struct_fields__  # type: ignore[attr-defined]
    changed = {name: _rename_field(name, getattr(value, name), renaming) for name in fields}
    return msgspec.structs.replace(value, **changed)  # type: ignore[type-var]


def _rename_field(name: str, value: object, renaming: Renaming) -> object:
    match value:
        case str() if name == "gap":
            return LABEL.join(map(renaming.text, value.split(LABEL)))
        # Of a closed list each: the type of a column, and the reason to decline a task.
        case str() if name not in ("type", "decline"):
            return renaming.text(value)
        case tuple():
            return tuple(_rename_field(name, each, renaming) for each in value)
        case dict():
            return {renaming.text(key): _rename_field(name, each, renaming) for key, each in value.items()}
        case msgspec.Struct():
            return _renamed(value, renaming)
    return value


def _rename_changes(state: Changes, renaming: Renaming) -> Changes:
    """The changes in the renamed database, where a reference to a new row is made of that row's new contents."""
    inserted = {new_row(table, row): (table, row) for table, rows in state.inserted.items() for row in rows}

    def value(held: Value) -> Value:
        if held not in inserted:
            return _rename_value(held, renaming)
        table, row = inserted[held]
        return new_row(renaming.text(table), fields(row))

    def fields(row: Mapping[str, Value]) -> JsonObject:
        return {renaming.text(name): value(held) for name, held in row.items()}

    return Changes(
        updated={
            renaming.text(table): {key: fields(row) for key, row in rows.items()}
            for table, rows in state.updated.items()
        },
        inserted={
            renaming.text(table): sorted(map(fields, rows), key=digest) for table, rows in state.inserted.items()
        },
        deleted={renaming.text(table): keys for table, keys in state.deleted.items()},
    )


def _rename_value(value: Value, renaming: Renaming) -> Value:
    return renaming.text(value) if isinstance(value, str) else value
