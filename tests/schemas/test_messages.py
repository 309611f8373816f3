"""What holds for every format that is made of chat messages, for any record, and for real ones beside the project."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.chat import to_messages, to_template
from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.formats.llamafactory import LlamaFactory
from agentmill.schemas.formats.openai import OpenAi
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.formats.trl import Trl
from agentmill.schemas.records.trajectory import Trajectory
from tests.schemas.formats import chat_records as chat
from tests.schemas.formats.leaves import held, leaves
from tests.schemas.records import records, texts

ORIGIN = Origin("demo", "train", row=4, licence="MIT")
CHAT = ("openai", "sharegpt", "llamafactory", "trl")
dialects = st.sampled_from([None, *DIALECTS])


def back(format_: Any, read: Read) -> Any:
    """The document that is written of what was read."""
    written = format_.write_pair(read.trajectory, *read.others) if read.others else format_.write(read.trajectory)
    return written.document


def comes_back(format_: Any, row: Any) -> None:
    read = format_.read(chat.encoded(row), ORIGIN)
    assert chat.plain(back(format_, read)) == chat.plain(row)
    for run in (read.trajectory, *read.others):
        assert from_arrow(to_arrow([run], Trajectory), Trajectory) == [run]


@given(row=chat.rows, messages=chat.messages | chat.spelled(chat.messages), dialect=dialects)
def test_openai_records_come_back(row: Any, messages: Any, dialect: Any) -> None:
    comes_back(OpenAi(dialect=dialect), {**row, "messages": messages})


speakers = st.sampled_from(
    [("human", "gpt", "observation"), ("user", "assistant", "tool"), ("human", "bard", "function")]
)
bare_calls = chat.record({"name": chat.names}, arguments=chat.arguments, extra=texts)
call_texts = st.one_of(chat.spelled(bare_calls), chat.spelled(st.lists(bare_calls, max_size=3)), chat.speech)


@st.composite
def sharegpt_turns(draw: st.DrawFn) -> list[Any]:
    speaker, text = draw(st.sampled_from([("from", "value"), ("role", "content")]))
    human, gpt, observation = draw(speakers)
    loss = st.sampled_from([True, False, None, 1])
    return draw(
        st.lists(
            st.one_of(
                chat.with_more(chat.record({speaker: st.just(name)}, **{text: values}, loss=loss, name=chat.names))
                for name, values in [
                    (human, chat.speech),
                    ("human", texts),
                    (gpt, chat.speech),
                    (observation, texts),
                    ("system", texts),
                ]
            )
            | chat.with_more(chat.record({speaker: st.just("function_call"), text: call_texts}))
            | chat.with_more(
                chat.record({speaker: st.just(gpt), "tool_calls": st.lists(chat.calls, max_size=2)}, **{text: texts})
            ),
            max_size=6,
        )
    )


@given(row=chat.rows, turns=sharegpt_turns(), system=st.none() | texts, tag=st.none() | st.booleans(), dialect=dialects)
def test_sharegpt_records_come_back(row: Any, turns: Any, system: Any, tag: Any, dialect: Any) -> None:
    comes_back(
        ShareGpt(dialect=dialect, order="as_said"), {**row, "conversations": turns, "system": system, "kto_tag": tag}
    )


@given(row=chat.rows, turns=sharegpt_turns(), at=st.integers(0, 6), single=st.booleans())
def test_sharegpt_pairs_come_back(row: Any, turns: Any, at: int, single: bool) -> None:
    answer = turns[at:]
    chosen = answer[0] if single and answer else answer
    comes_back(
        ShareGpt(order="as_said"), {**row, "conversations": turns[:at], "chosen": chosen, "rejected": answer[1:]}
    )


values = chat.record({"type": st.sampled_from(["text", "reasoning"]), "value": texts})
call_values = chat.record({"type": st.just("tool_call"), "value": chat.spelled(bare_calls)})
weights = st.sampled_from([0.0, 1.0, 0.5, 1, None])
parts_messages = st.lists(
    st.one_of(
        chat.message("assistant", loss_weight=weights).flatmap(
            lambda one: st.lists(values | call_values, max_size=4).map(lambda parts: {**one, "content": parts})
        ),
        st.builds(
            lambda one, parts: {**one, "content": parts},
            st.one_of(chat.message(role, loss_weight=weights) for role in ("system", "user", "tool")),
            st.lists(
                chat.with_more(chat.record({"type": st.sampled_from(["text", "image_url"]), "value": texts})),
                max_size=3,
            ),
        ),
    ),
    max_size=6,
)


def without_system_images(messages: list[Any]) -> bool:
    kinds = [part["type"] for message in messages if message["role"] == "system" for part in message["content"]]
    return "image_url" not in kinds


@given(row=chat.rows, messages=parts_messages.filter(without_system_images), info=texts)
def test_llamafactory_records_come_back(row: Any, messages: Any, info: str) -> None:
    comes_back(LlamaFactory(), {**row, "messages": messages, "extra_info": info})


@given(messages=parts_messages.filter(without_system_images), at=st.integers(0, 6))
def test_llamafactory_pairs_come_back(messages: Any, at: int) -> None:
    comes_back(LlamaFactory(), {"chosen_messages": messages, "rejected_messages": messages[:at]})


@st.composite
def trl_rows(draw: st.DrawFn) -> Any:
    row = draw(chat.rows)
    messages = draw(chat.messages)
    at = draw(st.integers(0, 6))
    prompt = draw(st.just(messages[:at]) | texts)
    completion = draw(st.just(messages[at:]) | texts)
    steps = draw(st.lists(st.tuples(texts, st.booleans()), max_size=3))
    shapes: list[Any] = [
        {"messages": messages},
        {"prompt": prompt},
        {"prompt": prompt, "completion": completion},
        {"prompt": prompt, "completion": completion, "label": draw(st.booleans())},
        {"prompt": prompt, "chosen": completion, "rejected": draw(texts | st.just(messages[at + 1 :]))},
        {"chosen": messages, "rejected": messages[:at]},
        {"prompt": prompt, "completions": [text for text, _ in steps], "labels": [label for _, label in steps]},
    ]
    return {**row, **draw(st.sampled_from(shapes))}


@given(row=trl_rows(), dialect=dialects)
def test_trl_rows_come_back(row: Any, dialect: Any) -> None:
    comes_back(Trl(dialect=dialect), row)


@pytest.mark.parametrize("name", CHAT)
@given(run=records(Trajectory), data=st.data())
def test_whatever_is_written_is_stable(name: str, run: Trajectory, data: st.DataObject) -> None:
    dialect = None if name == "llamafactory" else data.draw(dialects)
    order = {"order": data.draw(st.sampled_from(["as_said", "llamafactory"]))} if name == "sharegpt" else {}
    format_ = FORMATS.load(name)(**order, **({} if dialect is None else {"dialect": dialect}))
    run = msgspec.structs.replace(run, extra={key: value for key, value in run.extra.items() if key != name})
    try:
        document, losses = format_.write(run)
    except FormatError as error:
        assume(error.reason != "unsayable")
        assume(order != {"order": "llamafactory"} or error.reason not in ("no_answer", "turn_order"))
        raise
    assert all(count > 0 for count in losses.values())
    found = format_.read(msgspec.json.encode(document), ORIGIN)
    assert not found.losses
    again = format_.write(found.trajectory)
    assert again.document == document
    assert not again.losses


REAL = [
    (OpenAi(), "adp/code_feedback/raw.jsonl"),
    (OpenAi(), "adp/nnetnav-*/raw.jsonl"),
    (OpenAi(), "adp/swe-*/raw.jsonl"),
    (OpenAi(dialect="function_xml"), "adp/swe-smith/raw.jsonl"),
    (OpenAi(dialect="fenced"), "adp/code_feedback/raw.jsonl"),
    (OpenAi(), "llamafactory/kto*.jsonl"),
    (ShareGpt(order="as_said"), "adp/agenttuning_*/raw.jsonl"),
    (ShareGpt(order="as_said", dialect="react"), "adp/agenttuning_*/raw.jsonl"),
    (ShareGpt(order="as_said"), "adp/codeactinstruct/raw.jsonl"),
    (ShareGpt(order="as_said", dialect="execute"), "adp/codeactinstruct/raw.jsonl"),
    (ShareGpt(order="as_said"), "adp/orca_agentinstruct/raw.jsonl"),
    (ShareGpt(order="as_said"), "llamafactory/glaive*.jsonl"),
    (ShareGpt(order="as_said"), "llamafactory/dpo*.jsonl"),
    (ShareGpt(order="as_said", kto_tag="label"), "llamafactory/kto*.jsonl"),
    (LlamaFactory(), "llamafactory/reason*.jsonl"),
    (LlamaFactory(), "llamafactory/v1*.jsonl"),
    (Trl(), "llamafactory/kto*.jsonl"),
    (Trl(), "adp/swe-gym*/raw.jsonl"),
]
STRUCTURE = {"system", "user", "assistant", "tool", "human", "gpt", "function_call", "observation"}
STRUCTURE |= {"text", "reasoning", "tool_call", "function"}
"""Texts of records that say what something is, not what it holds."""


@pytest.mark.parametrize(("format_", "pattern"), REAL, ids=[f"{each[0]!r} {each[1]}" for each in REAL])
def test_real_records_come_back_and_lose_no_text(format_: Any, pattern: str) -> None:
    found = chat.samples(os.environ.get("AGENTMILL_SAMPLES"), pattern)
    if not found:
        pytest.skip("AGENTMILL_SAMPLES names no folder with these sample records")
    for _, raw in found:
        row = json.loads(raw)
        read = format_.read(raw, ORIGIN)
        if "tools.null" in read.losses:
            row["tools"] = json.loads(json.dumps(row["tools"]), object_hook=_no_nulls)
        assert read.losses.keys() <= {"tools.null"}
        assert chat.plain(back(format_, read)) == chat.plain(row)
        runs = (read.trajectory, *read.others)
        assert from_arrow(to_arrow(runs, Trajectory), Trajectory) == list(runs)
        if getattr(format_, "dialect", None) is None:
            missing = leaves(row) - held(runs)
            assert not Counter({text: n for text, n in missing.items() if text not in STRUCTURE})


@pytest.mark.parametrize(("format_", "pattern"), REAL, ids=[f"{each[0]!r} {each[1]}" for each in REAL])
def test_no_text_of_a_real_record_is_ours(format_: Any, pattern: str) -> None:
    found = chat.samples(os.environ.get("AGENTMILL_SAMPLES"), pattern)
    if not found:
        pytest.skip("AGENTMILL_SAMPLES names no folder with these sample records")
    for _, raw in found:
        read = format_.read(raw, ORIGIN)
        given = json.dumps(_texts(json.loads(raw)), ensure_ascii=False)
        for run in (read.trajectory, *read.others):
            for item in run.content:
                for field in ("content", "description", "reasoning_content", "function", "language"):
                    text = getattr(item, field, None) or ""
                    assert json.dumps(text, ensure_ascii=False)[1:-1] in given or text == "python"


def _texts(value: Any) -> Any:
    """A record with all JSON text in it opened."""
    if isinstance(value, dict):
        return [_texts(each) for each in value.values()]
    if isinstance(value, list):
        return [_texts(each) for each in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return [value, _texts(json.loads(value))]
        except ValueError:
            return value
    return value


def _no_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if each is not None}


def test_real_calls_of_several_sources_render_as_chat() -> None:
    found = chat.samples(os.environ.get("AGENTMILL_SAMPLES"), "adp/swe-gym*/raw.jsonl")
    if not found:
        pytest.skip("AGENTMILL_SAMPLES names no folder with these sample records")
    for _, raw in found:
        run = OpenAi().read(raw, ORIGIN).trajectory
        template = to_template(to_messages(run.system_prompt, run.content))
        given = [each["role"] for each in json.loads(raw)["messages"]]
        assert [each["role"] for each in template] == given
