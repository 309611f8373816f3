"""``redact``: what is replaced in rows of every kind, what happens to token ids, and what cannot be redacted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import (
    Message,
    MessageCall,
    PreferenceRow,
    RowTokens,
    SampledTurn,
    SftRow,
    TextRow,
    UnpairedRow,
)
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped
from agentmill.schemas.tables import Counts, Table, read_shard
from tests.builders import trajectory
from tests.errors import user_error
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import job, run, stage

TOKEN = "ghp_" + "aB3d" * 9
MADE = {"trajectory_id": "t", "view": "sft", "view_parameters": {}}
TOKENS = [RowTokens(input_ids=[1, 2, 3], turns=[SampledTurn(message=1, start=1, end=3)])]


def chat(row_id: str, *texts: str, **fields: Any) -> SftRow:
    roles = ("user", "assistant")
    messages = [Message(role=roles[n % 2], content=text, train=bool(n % 2)) for n, text in enumerate(texts)]  # type: ignore[arg-type]
    return SftRow(**{"row_id": row_id, "messages": messages, "tokens": TOKENS, **MADE, **fields})


def redact(folder: Path, *rows: Record, name: str = "clean", **parameters: Any) -> list[Any]:
    write_table(folder / "rows", [rows], type(rows[0]))
    manifest = run(folder, "redact", name, **{"from": "rows", **parameters})
    made = rows_of(folder / name)
    dropped = len(rows) - len(made)
    assert manifest.counts == Counts(read=len(rows), used=len(made), dropped=dropped, written=len(made))
    return made


def test_texts_are_replaced_and_token_ids_go(tmp_path: Path) -> None:
    plain = chat("a", "What is the time?", "Noon.")
    found = chat("b", f"Write to a@firm.org with {TOKEN}.", f"I used {TOKEN}.", task_id="task1")
    clean, redacted = redact(tmp_path, plain, found)
    assert clean == plain
    assert [each.content for each in redacted.messages] == [
        "Write to [EMAIL_ADDRESS_1] with [GITHUB_TOKEN_1].",
        "I used [GITHUB_TOKEN_1].",
    ]
    assert [each.train for each in redacted.messages] == [False, True]
    assert (redacted.row_id, redacted.task_id, redacted.tokens) == ("b", "task1", [])
    step = job(tmp_path, "redact", "clean", **{"from": "rows"})
    manifest = step.finished()
    assert manifest is not None
    assert manifest.metrics == {
        "redacted.email_address": 1,
        "redacted.github_token": 1,
        "rows_redacted": 1,
        "without_tokens": 1,
    }
    assert step.parameters.notes(manifest) == [
        "redacted in 1 of 2 rows: 1 email_address, 1 github_token",
        "1 of them lose their sampled token ids",
    ]


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    text = f"{TOKEN} of a@firm.org is in /home/jane/key"
    (personal,) = redact(tmp_path, chat("a", text), redact=["personal"])
    assert personal.messages[0].content == f"{TOKEN} of [EMAIL_ADDRESS_1] is in /home/jane/key"
    (both,) = redact(tmp_path / "p", chat("a", text), redact=["path", "secret"])
    assert both.messages[0].content == "[GITHUB_TOKEN_1] of a@firm.org is in [LOCAL_PATH_1]"


def test_arguments_stay_json(tmp_path: Path) -> None:
    arguments = json.dumps({"api_key": "7f3a9c" * 4, "to": "a@firm.org\n", "cc": "\na@firm.org", "n": 1})
    call = MessageCall(name="send", arguments=arguments, id="call1")
    message = Message(role="assistant", tool_calls=[call], reasoning_content="a@firm.org")
    tools = json.dumps([{"name": "send", "description": "ask a@firm.org"}])
    (row,) = redact(tmp_path, SftRow(row_id="a", messages=[message], tools=tools, **MADE), name="one")
    (made,) = row.messages[0].tool_calls
    assert json.loads(made.arguments) == {
        "api_key": "[NAMED_KEY_1]",
        "to": "[EMAIL_ADDRESS_1]\n",
        "cc": "\n[EMAIL_ADDRESS_1]",
        "n": 1,
    }
    assert row.messages[0].reasoning_content == "[EMAIL_ADDRESS_1]"
    assert json.loads(row.tools)[0]["description"] == "ask [EMAIL_ADDRESS_1]"


@pytest.mark.parametrize("before", ["\n", "\t", "\u20ac", "C:\\n"])
def test_an_address_behind_an_escape(before: str, tmp_path: Path) -> None:
    call = MessageCall(name="send", arguments=json.dumps({"to": f"x{before}anna@firm.org\n"}), id="call1")
    message = Message(role="assistant", tool_calls=[call], content="anna@firm.org")
    (row,) = redact(tmp_path, SftRow(row_id="a", messages=[message], **MADE))
    assert json.loads(row.messages[0].tool_calls[0].arguments) == {"to": f"x{before}[EMAIL_ADDRESS_1]\n"}
    assert row.messages[0].content == "[EMAIL_ADDRESS_1]"


def test_arguments_that_are_nested_too_deeply_to_be_decoded_are_redacted_as_text(tmp_path: Path) -> None:
    deep = "[" * 20_000 + '"a@firm.org"' + "]" * 20_000
    call = Message(role="assistant", tool_calls=[MessageCall(name="f", arguments=deep)])
    (kept,) = redact(tmp_path, SftRow(row_id="a", messages=[call], **MADE))
    arguments = kept.messages[0].tool_calls[0].arguments
    assert "firm.org" not in arguments
    assert arguments.startswith("[" * 20_000)


def test_what_cannot_be_redacted_is_dropped_without_its_text(tmp_path: Path) -> None:
    escaped = "".join(f"%{ord(each):02X}" for each in TOKEN)
    parts = {"key": "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEAMIIE", "x": {"end": "-----END PRIVATE KEY-----"}}
    cut = json.dumps(parts)
    call = Message(role="assistant", tool_calls=[MessageCall(name="f", arguments=cut)])
    identified = chat("a@firm.org", "a@firm.org")
    rows = [chat("a", escaped), SftRow(row_id="b", messages=[call], **MADE), identified, chat("d", "fine")]
    (kept,) = redact(tmp_path, *rows)
    assert kept.row_id == "d"
    (path,) = Table.open(tmp_path / "clean").dropped_shards()
    assert {(each.input_id, each.reason, each.detail) for each in read_shard(path, Dropped)} == {
        ("a", "still_sensitive", "github_token behind escapes"),
        ("b", "broken_json", "`arguments` would be no JSON any more"),
        ("a@firm.org", "still_sensitive", "email_address"),
    }
    assert all(set(each.input) == {"row_id"} for each in read_shard(path, Dropped))
    assert stage("redact", **{"from": "rows"}).notes(Table.open(tmp_path / "clean").manifest) == []


def test_rows_of_other_kinds(tmp_path: Path) -> None:
    say = [Message(role="user", content="I am b@firm.org")]
    answers = [[Message(role="assistant", content=f"Hello {name}@firm.org", train=True)] for name in "bc"]
    (pair,) = redact(
        tmp_path / "pairs",
        PreferenceRow(
            row_id="p",
            view="trajectory_pairs",
            view_parameters={"system_prompts": ["ask c@firm.org"]},
            prompt=say,
            chosen=answers[0],
            rejected=answers[1],
            chosen_id="1",
            rejected_id="2",
            chosen_tokens=TOKENS,
        ),
    )
    assert pair.chosen[0].content == "Hello [EMAIL_ADDRESS_1]"
    assert pair.rejected[0].content == "Hello [EMAIL_ADDRESS_2]"
    assert (pair.chosen_tokens, pair.view_parameters) == ([], {"system_prompts": ["ask [EMAIL_ADDRESS_2]"]})
    (unpaired,) = redact(
        tmp_path / "kto", UnpairedRow(row_id="u", prompt=say, completion=answers[1], label=True, **MADE)
    )
    assert unpaired.completion[0].content == "Hello [EMAIL_ADDRESS_2]"
    (text,) = redact(tmp_path / "text", TextRow(row_id="x", text="call +49 30 1234 5678", **MADE))
    assert text.text == "call [PHONE_NUMBER_1]"


def test_nothing_found_and_again(tmp_path: Path) -> None:
    rows = [chat("a", "x"), chat("b", "y")]
    assert redact(tmp_path, *rows) == rows
    step = job(tmp_path, "redact", "clean", **{"from": "rows"})
    manifest = step.finished()
    assert manifest is not None
    assert step.parameters.notes(manifest) == ["nothing to redact was found"]
    assert redact(tmp_path / "two", *redact(tmp_path / "one", chat("a", "a@firm.org")))[0].messages[0].content == (
        "[EMAIL_ADDRESS_1]"
    )


def test_shards_do_not_matter(tmp_path: Path) -> None:
    rows = [chat(f"{number}", f"{number}@firm.org") for number in range(5)]
    whole = redact(tmp_path / "one", *rows)
    write_table(tmp_path / "two/rows", [rows[3:], rows[:3]], SftRow)
    run(tmp_path / "two", "redact", "clean", **{"from": "rows"})
    assert sorted(rows_of(tmp_path / "two/clean"), key=lambda row: row.row_id) == whole


def test_mistakes(tmp_path: Path) -> None:
    for redact_, code in (([], "invalid-value"), (["names"], "invalid-value")):
        with user_error(code, "redact"):
            stage("redact", **{"from": "x", "redact": redact_})
    write_table(tmp_path / "runs", [[trajectory()]], Trajectory)
    with user_error("wrong-record-type", "Trajectory", "SftRow"):
        job(tmp_path, "redact", "clean", **{"from": "runs"})


@pytest.mark.parametrize("field", ["arguments", "tools"])
def test_a_text_that_was_no_json_is_redacted_all_the_same(field: str, tmp_path: Path) -> None:
    call = MessageCall(name="f", arguments="{a@firm.org" if field == "arguments" else "{}")
    row = SftRow(
        row_id="a",
        messages=[Message(role="assistant", tool_calls=[call])],
        tools="[a@firm.org" if field == "tools" else None,
        **MADE,
    )
    (made,) = redact(tmp_path, row)
    assert "a@firm.org" not in str(made)
