"""Secrets and personal data are told from what only looks like them."""

from __future__ import annotations

import json

import polars as pl
import pytest

from agentmill.pipelines.sensitive.patterns import (
    EMAIL_ADDRESS,
    LOCAL_PATH,
    PATH,
    PHONE_NUMBER,
    SECRETS,
    personal_in,
    secrets_in,
    sensitive_in,
)

REAL = {
    "age_key": "AGE-SECRET-KEY-1" + "Q2" * 29,
    "anthropic_key": "sk-ant-api03-" + "aB3_" * 23,
    "aws_key_id": "AKIA" + "ABCDEFGH234567QW",
    "aws_secret_key": "AWS_SECRET_ACCESS_KEY=" + "aB3/" * 10,
    "azure_key": "AccountKey=" + "aB" * 43 + "==",
    "basic_auth": "Authorization: Basic " + "amFuZTpo" + "dW50ZXIyMg==",
    "bearer_token": "Bearer " + "aB3d" * 6,
    "cerebras_key": "csk-" + "ab3d" * 12,
    "databricks_token": "dapi" + "0af3" * 8,
    "github_token": "ghp_" + "aB3d" * 9,
    "google_key": "AIza" + "aB3_-" * 7,
    "groq_key": "gsk_" + "aB3d" * 13,
    "huggingface_token": "hf_" + "aBcD" * 8 + "xY",
    "json_web_token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJqYW5lIiwiZXhwIjoxfQ." + "aB3_" * 10,
    "langsmith_key": "lsv2_pt_" + "0af3" * 8 + "_" + "0a" * 5,
    "named_key": "X_API_KEY=" + "7f3a9c" * 4,
    "npm_token": "npm_" + "aB3d" * 9,
    "nvidia_key": "nvapi-" + "aB3_" * 16,
    "openai_key": "sk-proj-" + "aB3d_" * 10,
    "openrouter_key": "sk-or-v1-" + "0af3" * 16,
    "perplexity_key": "pplx-" + "aB3d" * 12,
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA",
    "pypi_token": "pypi-AgEIcHlwaS5vcmc" + "aB3d-" * 12,
    "replicate_token": "r8_" + "aB3d" * 9 + "x",
    "sendgrid_key": "SG." + "aB" * 11 + "." + "a-3" * 14 + "x",
    "service_key": "sk-" + "0af3" * 8,
    "slack_token": "xoxb-123456789012-abcdefABCDEF",
    "stripe_key": "sk_live_" + "aB3d" * 6,
    "together_key": "tgp_v1_" + "aB3_" * 11,
    "url_password": "https://jane:hunter2@10.0.0.5:8000/v1",
    "xai_key": "xai-" + "aB3d" * 20,
}
HARMLESS = [
    "",
    "ask-anthropic about hf_hub_download and npm_install",
    "AKIAIOSFODNN7EXAMPLE",
    "-----BEGIN PUBLIC KEY-----\nMIIEowIBAAKCAQEA",
    "-----BEGIN RSA PRIVATE KEY----- is how the file starts",
    "sk-learn, sk-proj-short, ghp_short",
    "f" * 64,
    "x" + "ghp_" + "aB3d" * 9,
    "task-" + "0af3" * 8,
    "OPENAI_API_KEY=sk-" + "x" * 40,
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Authorization: Bearer $TOKEN, bearer authentication-and-authorization, Bearer YOUR_ACCESS_TOKEN_NUMBER_1",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiaWF0IjoxNTE2MjM5MDIyfQ."
    "SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
    "postgres://user:password@db/x, redis://a:$PASS@h, redis://a:$db_pass@h, redis://a:${Pass}@h, mysql://%s:%s@host, http://a:b3c@localhost:80",
    "https://user:s3cret@proxy.example.com ssh://git@github.com:org/x http://host:8080/a@b r'://([^:]+):([^@]+)@x'",
    "Authorization: Basic " + "QWxhZGRpbjpv" + "cGVuIHNlc2FtZQ==",
    "Authorization: Basic authentication-scheme, 'Authorization': 'Basic YOUR_BASE64_PART'",
    '{"auth": "authentication/required", "oauth": "aB3daB3daB3daB3daB3d"}',
    "docker run -u 1000:1000 image; curl -u $USER:$PASSWORD http://h; curl --user user:password http://h",
    "OPENAI_API_KEY=os_environ_get_key api_key: load_key_from_file_v2, X-API-Key: your-key-12345678901234567890",
    "api_key=config.settings.openai_key access_token: 20240101123456789012345 API_KEY=<your key>",
    "postgres://jane:***@db ftp://${USER}:${PASS}@host https://x/y?a=b:c@d",
]

BEFORE = ["", "text ", "令牌", "my_", "\n", "\t", "\x1b[31m", "\x1b[0;1m", "\u0007", "\\x0a", "?q=a%20", "x\\ny\\t"]
"""What stands before a secret."""


def escaped(text: str, times: int) -> str:
    """``text`` in a JSON document, in a text of another, and so on."""
    for _ in range(times):
        text = json.dumps({"input": text})
    return text


@pytest.mark.parametrize("times", range(5))
@pytest.mark.parametrize("kind", sorted(SECRETS))
def test_every_kind_of_secret_is_found_wherever_it_stands_however_often_it_was_escaped(kind: str, times: int) -> None:
    secret = REAL[kind]
    texts = [escaped(f"{before}{secret}{after}", times) for before in BEFORE for after in ("", "\n", '" and')]
    texts += [escaped(f"{quote}{secret}{quote}", times) for quote in ("'", '"', "`", "\n", "\r\n")]
    found = secrets_in(pl.Series([*HARMLESS, *texts]))
    assert {name: mask.to_list() for name, mask in found.items()} == {
        kind: [False] * len(HARMLESS) + [True] * len(texts)
    }


@pytest.mark.parametrize("times", range(5))
def test_what_only_looks_like_a_secret_is_none_however_often_it_was_escaped(times: int) -> None:
    assert secrets_in(pl.Series([escaped(f"see\n{each}\n", times) for each in HARMLESS])) == {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("basic_auth", "curl -s https://h/x -u jane:" + "hunter22x"),
        ("basic_auth", "{'Authorization': 'Basic " + "amFuZTpodW50ZXIyMg'}"),
        ("basic_auth", "AUTH='Basic " + "amFuZTpodW50ZXIyMg=='"),
        ("basic_auth", '{"auths": {"https://h/v1/": {"auth": "' + "amFuZTpodW50ZXIyMg==" + '"}}}'),
        ("named_key", "x-api-key: " + "aB3d" * 6),
        ("named_key", "https://h/x?a=1&api_key=" + "9b3d" * 8),
        ("named_key", '"apiKey": "' + "9b3dZ" * 5 + '"'),
        ("named_key", "export WEATHER_API_KEY='" + "9b3d" * 8 + "'"),
        ("named_key", "CLIENT_SECRET=" + "9b3dZ_" * 4),
        ("url_password", "postgres://jane:" + "p^7*,x;z" + "@db.internal/x"),
        ("url_password", "redis://:" + "s3cr3t7" + "@cache:6379"),
        ("url_password behind escapes", r"{\"u\": \"https:\/\/bob:" + "Zx9kQ2mW7p" + r"@10.0.0.7\/x\"}"),
        ("url_password", "redis://:" + "$Tr0ngPass" + "@cache:6379"),
    ],
)
def test_credentials_without_a_provider_are_found_by_where_they_are(kind: str, text: str) -> None:
    assert list(secrets_in(pl.Series([text]))) == [kind]


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\nMIIEowIBAAKCAQEA",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\\nVersion: GnuPG v1\\n\\nlQOYBF0ZJxEBCADM",
        "-----BEGIN OPENSSH PRIVATE KEY-----\r\nb3BlbnNzaC1rZXktdjEA",
        "  1\t-----BEGIN PRIVATE KEY-----\n  2\tMIIEvQIBADANBgkqh",
        "'-----BEGIN PRIVATE KEY-----\\n' +\n  'MIIEvQIBADANBgkqh",
        "+-----BEGIN PRIVATE KEY-----\n+MIIEvQIBADANBgkqh",
    ],
)
def test_a_private_key_is_found_behind_its_headers_numbers_of_lines_and_in_json(key: str) -> None:
    texts = pl.Series([escaped(key, times) for times in range(5)])
    assert {kind: mask.to_list() for kind, mask in secrets_in(texts).items()} == {"private_key": [True] * 5}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run_dir: /home/jane/runs/x\n", True),
        ('{"model":"/srv/models/base"}', True),
        ("model: ~/models/base", True),
        ("file:///data/x.jsonl", True),
        ("PATH=bin:/home/jane/bin", True),
        (r'{"text": "see\n/home/jane/x"}', True),
        (r'{"text": "C:\\Users\\jane"}', True),
        (r'{"text": "\/home\/jane"}', True),
        ("run_dir: runs/quickstart", False),
        ("endpoints: [http://127.0.0.1:8000/v1/chat]", False),
        ("hf://datasets/org/name/data", False),
        ("application/json or 1/2/3", False),
    ],
)
def test_local_paths_are_told_from_addresses(text: str, told: bool) -> None:
    assert list(sensitive_in(pl.Series([text]), PATH)) == [("path", LOCAL_PATH)] * told


def test_addresses_and_numbers_of_people_are_found() -> None:
    texts = [
        "write to jane.doe@company.org",
        "me@example.com",
        "git@github.com:a/b",
        "call +49 30 1234 5678",
        "1 + 12 34",
    ]
    found = {kind: mask.to_list() for kind, mask in personal_in(pl.Series(texts)).items()}
    assert found == {
        EMAIL_ADDRESS: [True, False, False, False, False],
        PHONE_NUMBER: [False, False, False, True, False],
    }
    assert personal_in(pl.Series(["@property", "user@host", "a+b", "noreply@company.org", ""])) == {}
    escaped_texts = pl.Series([escaped(f"see\n{each}", 2) for each in texts])
    assert {kind: mask.to_list() for kind, mask in personal_in(escaped_texts).items()} == found
