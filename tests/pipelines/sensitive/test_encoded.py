"""Secrets are found behind one encoding, and ordinary texts in these encodings are left alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import polars as pl
import pytest

from agentmill.pipelines.sensitive.patterns import secrets_in

TOKEN = "ghp_" + "aB3d" * 9
SENTENCE = f"export GH={TOKEN} # keep"


def wrapped(text: str) -> str:
    return base64.encodebytes((text.rjust(130)).encode()).decode()


def broken(text: str, end: str) -> str:
    return f"x = '{text[:17]}{end}{text[17:]}'"


ENCODED: dict[str, tuple[str, Callable[[], str]]] = {
    "base64": ("base64", lambda: base64.b64encode(SENTENCE.encode()).decode()),
    "base64 without padding": ("base64", lambda: base64.b64encode(SENTENCE.encode()).decode().rstrip("=")),
    "base64 for addresses": ("base64", lambda: base64.urlsafe_b64encode(f"??>>{SENTENCE}".encode()).decode()),
    "base64 in a Kubernetes secret": ("base64", lambda: f"data:\n  t: {base64.b64encode(TOKEN.encode()).decode()}\n"),
    "base64 over lines": ("base64", lambda: wrapped(SENTENCE)),
    "base64 over lines in JSON": ("base64", lambda: json.dumps({"x": wrapped(SENTENCE)})),
    "base64 of UTF-16": ("base64", lambda: base64.b64encode(SENTENCE.encode("utf-16-le")).decode()),
    "base64 of other scripts": ("base64", lambda: base64.b64encode(f"令牌令牌令牌令牌 {SENTENCE}".encode()).decode()),
    "hex": ("hex", lambda: SENTENCE.encode().hex()),
    "hex in capitals": ("hex", lambda: SENTENCE.encode().hex().upper()),
    "percent": ("escapes", lambda: "".join(f"%{ord(each):02X}" for each in TOKEN)),
    "percent for some": ("escapes", lambda: f"?t={quote(TOKEN).replace('_', '%5F')}&x=1"),
    "unicode escapes": ("escapes", lambda: "".join(f"\\u{ord(each):04x}" for each in TOKEN)),
    "unicode escapes in JSON": ("escapes", lambda: json.dumps("".join(f"\\u{ord(each):04x}" for each in TOKEN))),
    "hex escapes": ("escapes", lambda: "".join(f"\\x{ord(each):02x}" for each in TOKEN)),
    "colours": ("ANSI codes", lambda: f"\x1b[31mghp_\x1b[0m\x1b[1m{TOKEN[4:]}\x1b[0m"),
    "colours in JSON": ("ANSI codes", lambda: json.dumps(f"{TOKEN[:9]}\x1b[01;31m\x1b[K{TOKEN[9:]}")),
    "a line end": ("split lines", lambda: broken(TOKEN, "\n")),
    "a line end of Windows": ("split lines", lambda: broken(TOKEN, "\r\n   ")),
    "a backslash": ("split lines", lambda: broken(TOKEN, "\\\n")),
    "two literals": ("split lines", lambda: broken(TOKEN, "'\n    '")),
    "a sum of literals": ("split lines", lambda: broken(TOKEN, "' +\n    '")),
    "two literals of bytes": ("split lines", lambda: broken(TOKEN, "'\n    b'")),
    "a line end in a line of JSON": ("split lines", lambda: json.dumps(f"\n{TOKEN[:9]}\n{TOKEN[9:]}")),
    "a line end in JSON": ("split lines", lambda: json.dumps(broken(TOKEN, "\n"))),
}


@pytest.mark.parametrize("name", ENCODED)
def test_a_token_is_found_behind_one_encoding(name: str) -> None:
    encoding, text = ENCODED[name]
    found = secrets_in(pl.Series(["nothing", f"see {text()} here", "more"]))
    assert {kind: mask.to_list() for kind, mask in found.items()} == {
        f"github_token behind {encoding}": [False, True, False]
    }


def test_a_token_that_is_readable_is_reported_once() -> None:
    text = f"{TOKEN} %41 \\u0041 \x1b[31m"
    assert list(secrets_in(pl.Series([text]))) == ["github_token"]


def test_what_is_readable_in_one_text_and_encoded_in_another_is_reported_for_both() -> None:
    texts = pl.Series([TOKEN, SENTENCE.encode().hex()])
    assert {kind: mask.to_list() for kind, mask in secrets_in(texts).items()} == {
        "github_token": [True, False],
        "github_token behind hex": [False, True],
    }


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(b"an ordinary sentence about hf_hub_download and sk-learn").decode(),
        base64.b64encode(bytes(range(256))).decode(),
        "0f" * 32,
        "/usr/lib/python3/dist-packages/some_package/another_module",
        "hf_model\ntransformers\ntokenizers\naccelerate\nsentencepiece",
        "sk-learn\nscikit\nBearer\nauthentication_and_authorization",
        "https://h/a%20b%2Fc?q=%E4%BB%A4 \\u4ee4\\u724c \\x00\\xff \x1b[31mred\x1b[0m",
        "A" * 25,
        f"qZ+8{'Zx9' * 9}AIza{'aB3' * 10}\n{'aB3' * 20}\n",
    ],
)
def test_ordinary_texts_in_these_encodings_hold_no_secret(text: str) -> None:
    assert secrets_in(pl.Series([text])) == {}
