"""Hypothesis strategies for chat records: what OpenAI messages may hold, the odd and the broken included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.schemas.records import json_objects, json_values, texts

Row = dict[str, Any]

FRAGMENTS = [
    "Thought: look",
    "\nAction: look\nAction Input: {}",
    "\nAction: search[a]",
    "\nObservation: seen",
    "\nFinal Answer: 42",
    "<function=f>\n<parameter=a>1</parameter>\n</function>",
    "<function=f><parameter=a>\n</parameter>",
    "<execute>\nls\n</execute>",
    "<execute_bash> ls </execute_bash>",
    "```python\nx = 1\n```\n",
    "~~~\n~~~",
    "\nsearch[a]",
    '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
    '<tool_call>{"name": "f"',
    "<think>\nhm\n</think>\n\n",
    "\n",
]
speech = st.lists(st.sampled_from(FRAGMENTS) | texts, max_size=4).map("".join)
"""Texts that are full of what the dialects look for."""

names = texts.filter(bool)
fields = st.dictionaries(st.sampled_from(["x", "y z", "cutoff_date", "mood", "id_"]), json_values, max_size=2)
odd_arguments = st.sampled_from(
    ["", "{", "[1, 2]", "3", '"{}"', '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1.10}', '{ "a":1}']
)


def spelled(objects: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    """JSON text in the styles that are about."""
    return st.one_of(
        objects.map(lambda value: msgspec.json.encode(value).decode()),
        objects.map(json.dumps),
        objects.map(lambda value: json.dumps(value, ensure_ascii=False)),
        objects.map(lambda value: json.dumps(value, indent=1)),
    )


arguments = st.one_of(json_objects, spelled(json_objects), odd_arguments, st.just([1, "x"]), st.just(7), st.none())


def record(always: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    """Objects with fields, some of which may be missing."""
    return st.fixed_dictionaries(always, optional=optional)


def with_more(objects: st.SearchStrategy[Row]) -> st.SearchStrategy[Row]:
    """Objects with fields besides that nobody knows."""
    return st.builds(lambda one, more: {**more, **one}, objects, fields)


text_parts = with_more(record({"type": st.just("text"), "text": texts}))
urls = st.fixed_dictionaries({"url": names}, optional={"detail": st.just("high")})
image_parts = record({"type": st.just("image_url"), "image_url": names | urls})
contents = speech | st.lists(text_parts, max_size=3) | st.none()
shown = contents | st.lists(text_parts | image_parts, max_size=4)
flags = st.sampled_from([0, 1, 0.5, 1.0, True, None, "no"])
ids = st.sampled_from(["call_0", "call_1", "c", "", None])
functions = with_more(record({"name": names}, arguments=arguments))
calls = with_more(record({"function": functions}, id=ids, type=st.just("function")))
reasoning = {name: st.none() | texts for name in ("reasoning_content", "reasoning", "thinking")}


def message(role: str, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    """A message of a role."""
    return with_more(record({"role": st.just(role)}, **optional))


messages = st.lists(
    st.one_of(
        message("system", content=contents, name=names),
        message("developer", content=contents),
        message("user", content=shown, name=names),
        message("assistant", content=contents, name=names, weight=flags, **reasoning),
        message("assistant", content=contents, tool_calls=st.lists(calls, max_size=3), weight=flags, **reasoning),
        message("assistant", content=st.none(), function_call=functions),
        message("tool", content=shown, tool_call_id=ids, name=names),
        message("function", content=contents, name=names),
    ),
    max_size=6,
)
schemas = st.sampled_from(
    [
        {},
        {"type": "dict", "properties": {"a": {"type": "str"}}},
        {"properties": {"é": {"default": None}}, "required": []},
    ]
)
bare_tools = record(
    {"name": names}, description=texts, parameters=schemas, strict=st.booleans(), input_schema=schemas, more=texts
)
tools = st.lists(record({"type": st.just("function"), "function": bare_tools}, required=st.just(["a"])), max_size=2)
"""Without nulls where they make a schema false: those are dropped."""
any_tools = tools | st.lists(bare_tools, max_size=2) | spelled(tools) | st.sampled_from(["", "[]", "no tools", "{"])
rows = with_more(record({}, tools=any_tools, content=json_values, spelling=json_values, row=json_values, side=texts))


def plain(row: Row) -> str:
    """A record as text, such that records of equal text are equal: a field that is null is one that is not there."""
    texts_of_messages = {key: json.loads(row[key]) for key in MESSAGES if isinstance(row.get(key), str)}
    return json.dumps(_without_nulls({**row, **texts_of_messages}), sort_keys=True)


MESSAGES = ("messages", "conversations")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None or key == "content"}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def encoded(row: Row) -> bytes:
    """A row as it stands in a file."""
    return json.dumps(row, ensure_ascii=False).encode()


def samples(root: str | None, *patterns: str) -> Sequence[tuple[str, bytes]]:
    """Real records that lie beside the project, with the names of their files."""
    from pathlib import Path

    if not root or not Path(root).is_dir():
        return []
    files = sorted(file for pattern in patterns for file in Path(root).glob(pattern))
    return [(file.parent.name, line) for file in files for line in file.read_bytes().split(b"\n") if line.strip()]
