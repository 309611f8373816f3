"""Every kind of value is cut out of what is around it, and none is left once it is replaced."""

from __future__ import annotations

import base64
import json
import time

import pytest

from agentmill.pipelines.sensitive import findings as module
from agentmill.pipelines.sensitive.findings import Placeholders, counts, findings
from agentmill.pipelines.sensitive.patterns import EMAIL_ADDRESS, PHONE_NUMBER, Sort
from tests.pipelines.sensitive.test_patterns import REAL
from tests.pipelines.sensitive.test_patterns_rules import RULED

SECRETS: tuple[Sort, ...] = ("secret",)
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabcd/efg+12\n-----END RSA PRIVATE KEY-----"
TOKEN = REAL["github_token"]
AROUND = [("", ""), ("a ", " b"), ("='", "'\n"), ("\n", "\n"), ('{"x": "\\n', '"}'), ("_", ","), ("\x1b[0m", ";")]

PARTS = {
    "aws_secret_key": "aB3/" * 10,
    "azure_key": "aB" * 43 + "==",
    "basic_auth": "amFuZTpo" + "dW50ZXIyMg==",
    "bearer_token": "aB3d" * 6,
    "named_key": "7f3a9c" * 4,
    "url_password": "jane:hunter2",  # a short one is replaced with its user
}
"""What of a secret is replaced, where its name or its address stays."""


def redacted(*texts: str, sorts: tuple[Sort, ...] = module.SORTS) -> list[str]:
    (found,) = findings([texts], sorts)
    placeholders = Placeholders(texts, found)
    return [placeholders.replace(text) for text in texts]


@pytest.mark.parametrize("kind", sorted({**REAL, **RULED}))
def test_every_kind_of_secret_is_replaced_and_nothing_around_it(kind: str) -> None:
    secret = KEY if kind == "private_key" else {**REAL, **RULED}[kind]
    value = PARTS.get(kind, secret.removeprefix("https://"))
    groups = [[f"{before}{secret}{after}"] for before, after in AROUND]
    for (before, after), group, found in zip(AROUND, groups, findings(groups, SECRETS), strict=True):
        placeholders = Placeholders(group, found)
        label = placeholders.by_value[value]
        # An older form of a provider may fit, too.
        assert label in {f"[{each.kind.upper()}_1]" for each in found}
        assert kind in {each.kind for each in found}
        (text,) = group
        assert placeholders.replace(text) == before + secret.replace(value, label) + after
    assert all(found == [] for found in findings(([placeholders.replace(text)] for (text,) in groups), SECRETS))


def test_a_token_within_a_name_is_replaced_without_what_follows() -> None:
    token = REAL["huggingface_token"]
    assert redacted(f"backup_{token}_old.txt") == ["backup_[HUGGINGFACE_TOKEN_1]_old.txt"]


def test_one_value_has_one_placeholder_and_others_have_others() -> None:
    texts = redacted("to b@firm.org or a@firm.org", "a@firm.org, +49 30 1234 5678", "xa@firm.org")
    assert texts == [
        "to [EMAIL_ADDRESS_1] or [EMAIL_ADDRESS_2]",
        "[EMAIL_ADDRESS_2], [PHONE_NUMBER_1]",
        "[EMAIL_ADDRESS_3]",
    ]


def test_a_value_is_replaced_also_where_no_pattern_finds_it() -> None:
    key = "7f3a9c" * 4
    assert redacted(f"API_KEY={key}", f"It is {key}.") == ["API_KEY=[NAMED_KEY_1]", "It is [NAMED_KEY_1]."]


def test_a_short_value_is_replaced_only_where_it_was_found() -> None:
    assert redacted("http://a:b@10.0.0.5/x", "a:b is a pair") == ["http://[URL_PASSWORD_1]@10.0.0.5/x", "a:b is a pair"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"postgres://bob:{'p@ss12' + 'word'}@10.0.0.7/x", "postgres://bob:[URL_PASSWORD_1]@10.0.0.7/x"),
        ("call +14155552671 or whatsapp:+442079460958", "call [PHONE_NUMBER_1] or whatsapp:[PHONE_NUMBER_2]"),
        ('{"to": "+14155552671"}', '{"to": "[PHONE_NUMBER_1]"}'),
        ("a\n+1700000000,5\n+20240101120000", "a\n+1700000000,5\n+20240101120000"),
        ("jos\u00e9@firma.de, m\u00fcller@firma.de", "[EMAIL_ADDRESS_1], [EMAIL_ADDRESS_2]"),
        ("bob@m\u00fcnchen.de", "[EMAIL_ADDRESS_1]"),
        (r'{"to": "m\u00fcller@firma.de"}', '{"to": "[EMAIL_ADDRESS_1]"}'),
        ("\u8054\u7cfbbob@firma.de", "\u8054\u7cfb[EMAIL_ADDRESS_1]"),
    ],
)
def test_whole_values_are_replaced(text: str, expected: str) -> None:
    assert redacted(text) == [expected]
    assert redacted(expected) == [expected]


def test_a_password_is_replaced_wherever_it_is_used() -> None:
    word = "Zx9k" + "Q2mW7p"
    texts = redacted(f"connect postgres://svc:{word}@10.0.0.7/db", f'{{"cmd": "PGPASSWORD={word} psql"}}')
    assert texts == [
        "connect postgres://svc:[URL_PASSWORD_1]@10.0.0.7/db",
        '{"cmd": "PGPASSWORD=[URL_PASSWORD_1] psql"}',
    ]
    texts = redacted(f"curl -u admin1:{word} https://h/x", f'{{"password": "{word}"}}')
    assert texts == ["curl -u admin1:[BASIC_AUTH_1] https://h/x", '{"password": "[BASIC_AUTH_1]"}']
    assert redacted(*texts) == texts


def test_of_a_private_key_that_was_cut_off_only_its_lines_are_replaced() -> None:
    begin, line = "-----BEGIN RSA PRIVATE " + "KEY-----", "MIIEpAIBAAKCAQEA" + "1234567890abcdef"
    end = begin.replace("BEGIN", "END")
    shown = f"$ head -2 id_rsa; ls\n{begin}\n{line}\nREADME.md  src\n$ make test\n12 passed"
    assert redacted(shown) == ["$ head -2 id_rsa; ls\n[PRIVATE_KEY_1]\nREADME.md  src\n$ make test\n12 passed"]
    whole = f"{begin}\n{line}\n{end}\nFound by '{begin}' in it.\nNow the plan: 1. rotate"
    assert redacted(whole) == [f"[PRIVATE_KEY_1]\nFound by '{begin}' in it.\nNow the plan: 1. rotate"]
    call = f'{{"head": "{begin}\\n{line}\\n", "n": 5}}'
    assert redacted(call) == ['{"head": "[PRIVATE_KEY_1]\\n", "n": 5}']
    began = time.process_time()
    redacted(f"{begin}\n{line}" + "\\\\n" * 20_000 + "!")
    assert time.process_time() - began < 5


def test_numbers_go_on_after_an_earlier_redaction() -> None:
    assert redacted("[EMAIL_ADDRESS_7] wrote to a@firm.org") == ["[EMAIL_ADDRESS_7] wrote to [EMAIL_ADDRESS_8]"]
    assert redacted("[EMAIL_ADDRESS_7] wrote.") == ["[EMAIL_ADDRESS_7] wrote."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run_dir: /home/jane/runs/x\n", "run_dir: [LOCAL_PATH_1]\n"),
        (r'{"text": "see\n/home/jane/x"}', r'{"text": "see\n[LOCAL_PATH_1]"}'),
        (r'{"text": "C:\\Users\\jane\\x.txt"}', r'{"text": "[LOCAL_PATH_1]"}'),
        ("see https://a.org/b/c", "see https://a.org/b/c"),
    ],
)
def test_paths(text: str, expected: str) -> None:
    assert redacted(text) == [expected]
    assert redacted(text, sorts=("secret", "personal")) == [text]


@pytest.mark.parametrize("escape", [r"\n", r"\t", r"\u00e9", "%20", "[0m"])
def test_the_letter_of_an_escape_is_no_part_of_an_address(escape: str) -> None:
    assert redacted(f'{{"to": "{escape}anna@firm.org"}}') == [f'{{"to": "{escape}[EMAIL_ADDRESS_1]"}}']
    (found,) = findings([[f"x {escape}anna@firm.org", "anna@firm.org"]])
    assert dict(counts(found)) == {"personal": 1}
    for nobody in (f"x {escape}@app.route", f"x {escape}git@github.com"):
        assert redacted(nobody) == [nobody]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("to: [mia@firm.org, bob@firm.org]", "to: [[EMAIL_ADDRESS_1], [EMAIL_ADDRESS_2]]"),
        ("[mary@firm.org](mailto:mary@firm.org)", "[[EMAIL_ADDRESS_1]](mailto:[EMAIL_ADDRESS_1])"),
        ("Assigned: [m@firm.org]", "Assigned: [[EMAIL_ADDRESS_1]]"),
        (r"CORP\bob@firm.org logged in", r"CORP\[EMAIL_ADDRESS_1] logged in"),
        (r'{"user": "CORP\\anna@firm.org"}', r'{"user": "CORP\\[EMAIL_ADDRESS_1]"}'),
    ],
)
def test_the_first_letter_of_a_name_is_no_escape(text: str, expected: str) -> None:
    assert redacted(text) == [expected]


def test_only_the_sorts_that_are_asked_for() -> None:
    assert redacted(f"{TOKEN} a@firm.org", sorts=("personal",)) == [f"{TOKEN} [EMAIL_ADDRESS_1]"]


def test_what_is_encoded_is_replaced_where_it_is_known() -> None:
    encoded = base64.b64encode(f"export GH={TOKEN}".encode()).decode()
    assert redacted(f"see {encoded} and {TOKEN}") == ["see [GITHUB_TOKEN_1] and [GITHUB_TOKEN_2]"]
    assert redacted(f"see {TOKEN.encode().hex()}") == ["see [GITHUB_TOKEN_1]"]
    assert redacted(f"x = '{TOKEN[:17]}' +\n    '{TOKEN[17:]}'") == ["x = '[GITHUB_TOKEN_1]'"]
    hidden = "".join(f"%{ord(each):02X}" for each in TOKEN)
    (found,) = findings([[hidden]])
    assert [(each.kind, each.value) for each in found] == [("github_token behind escapes", None)]
    assert redacted(hidden) == [hidden]


def test_a_key_that_was_cut_off_is_replaced_with_its_short_last_line() -> None:
    assert redacted(f"see {KEY[:70]}", "next") == ["see [PRIVATE_KEY_1]", "next"]
    (text,) = redacted(json.dumps({"key": KEY, "x": 1}))
    assert json.loads(text) == {"key": "[PRIVATE_KEY_1]", "x": 1}


def test_values_are_counted_once() -> None:
    found = findings([[f"{TOKEN} {TOKEN}", f"API_KEY={TOKEN}", "a@firm.org b@firm.org"], ["nothing"], []])
    assert [dict(counts(each)) for each in found] == [{"secret": 1, "personal": 2}, {}, {}]


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[f"{number}@firm.org" * (number % 3), "x"] for number in range(7)]
    whole = list(findings(groups))
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 15)
    assert list(findings(groups)) == whole
    assert sum(map(len, whole)) > 2
    assert {each.kind for found in whole for each in found} <= {EMAIL_ADDRESS, PHONE_NUMBER}
