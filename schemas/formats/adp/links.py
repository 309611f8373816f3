"""Which observation answers which call: by id where there are ids, by position where there are none.

ADP 1.5 wants every answered call to have an id of its own, every id to be answered once, and no id on a message.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentmill.schemas.format import FormatError, Remarks
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, AnyItem, ApiAction, CodeAction

Pairs = dict[int, int]
"""Indices of calls to the indices of the observations that answer them."""


def is_call(item: AnyItem) -> bool:
    """Whether ``item`` is a tool action: something that an observation answers."""
    return isinstance(item, ApiAction | CodeAction)


def pairs_by_position(content: Sequence[AnyItem]) -> Pairs:
    """Pair each run of calls without an id with the run of observations without an id right after it, in order.

    Where the observations are fewer, they answer the last of the calls.
    """
    pairs: Pairs = {}
    calls: list[int] = []
    for index, item in enumerate(content):
        if isinstance(item, Action):
            # A message between calls ends the run: results come right after what they answer.
            if not (index and is_call(content[index - 1])):
                calls = []
            if is_call(item) and item.tool_call_id is None:
                calls.append(index)
            else:
                calls = []
        elif calls and isinstance(content[index - 1], Action):
            answers = _run_of_observations(content, index)
            pairs.update(zip(calls[-len(answers) :], answers, strict=False))
            calls = []
    return pairs


def position_ids(content: Sequence[AnyItem]) -> list[str | None]:
    """The ids that ``content`` gets where it has none: the same for the same positions."""
    ids: list[str | None] = [None] * len(content)
    for call, answer in pairs_by_position(content).items():
        ids[call] = ids[answer] = f"call_{call}"
    return ids


def unlinked(content: Sequence[AnyItem]) -> list[AnyItem]:
    """``content`` without ids."""
    return [msgspec.structs.replace(item, tool_call_id=None) for item in content]


def strict_ids(content: Sequence[AnyItem]) -> list[str | None]:
    """The ids of ``content`` as ADP 1.5 allows them: unique, all of them answered.

    Raises ``FormatError`` (``unanswered_call``) for a call right before an observation that does not answer it: ADP
    1.5 cannot say that.
    """
    pairs = {**pairs_by_position(content), **_pairs_by_id(content)}
    ids: list[str | None] = [None] * len(content)
    # Ids of all items, so that a new one never equals one that comes later.
    taken = {item.tool_call_id for item in content}
    used: set[str] = set()
    # In the order of the calls, so that the first of two equal ids keeps it.
    for call, answer in sorted(pairs.items()):
        name = content[call].tool_call_id or _free(f"call_{call}", taken)
        if name in used:
            name = _free(name, taken)
        taken.add(name)
        used.add(name)
        ids[call] = ids[answer] = name
    for index, item in enumerate(content):
        follower = content[index + 1] if index + 1 < len(content) else None
        if is_call(item) and ids[index] is None and follower is not None and not isinstance(follower, Action):
            raise FormatError("unanswered_call", f"item {index} is a call, item {index + 1} is no answer to it")
    return ids


def rule_remarks(content: Sequence[AnyItem], document: JsonObject) -> Remarks:
    """What of a record with its own ids breaks the rules of ADP 1.5, by reason code.

    ``call_without_id`` (a, right before an observation), ``repeated_call_id`` (b), ``orphan_result`` (c),
    ``duplicate_result`` (d), ``unanswered_call`` (e: the id of a call has no observation), ``id_of_message`` (f),
    ``undeclared_tool`` and ``other_languages`` (g, where tools and languages are stated).
    """
    remarks = Remarks()
    called: set[str] = set()
    answered: set[str] = set()
    for index, item in enumerate(content):
        name = item.tool_call_id
        follower = content[index + 1] if index + 1 < len(content) else None
        if is_call(item):
            remarks["call_without_id"] += name is None and follower is not None and not isinstance(follower, Action)
            remarks["repeated_call_id"] += name in called
            called |= {name} if name is not None else set()
        elif isinstance(item, Action):
            remarks["id_of_message"] += name is not None
        elif name is not None:
            remarks["orphan_result"] += name not in called
            remarks["duplicate_result"] += name in answered
            answered.add(name)
    remarks["unanswered_call"] += len(called - answered)
    stated = document.get("available_custom_tools", document.get("available_apis"))
    if isinstance(stated, list):
        functions = [item.function for item in content if isinstance(item, ApiAction)]
        remarks["undeclared_tool"] += sum(function not in stated for function in functions)
    languages = document.get("available_code_languages")
    if isinstance(languages, list):
        used = {item.language for item in content if isinstance(item, CodeAction)}
        remarks["other_languages"] += set(map(str, languages)) != used
    return +remarks


def _pairs_by_id(content: Sequence[AnyItem]) -> Pairs:
    """Each observation with an id answers the earliest unanswered call of that id before it."""
    pairs: Pairs = {}
    waiting: dict[str, list[int]] = {}
    for index, item in enumerate(content):
        if item.tool_call_id is None:
            continue
        if is_call(item):
            waiting.setdefault(item.tool_call_id, []).append(index)
        elif not isinstance(item, Action) and waiting.get(item.tool_call_id):
            pairs[waiting[item.tool_call_id].pop(0)] = index
    return pairs


def _run_of_observations(content: Sequence[AnyItem], start: int) -> list[int]:
    run = []
    for index in range(start, len(content)):
        if isinstance(content[index], Action) or content[index].tool_call_id is not None:
            break
        run.append(index)
    return run


def _free(name: str, taken: set[str | None]) -> str:
    number = 2
    free = name
    while free in taken:
        free = f"{name}_{number}"
        number += 1
    return free
