"""Secrets and personal data are told from what only looks like them."""

from __future__ import annotations

import polars as pl
import pytest

from pipelines.publish.sensitive import (
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
    "anthropic_key": "sk-ant-api03-" + "aB3_" * 23,
    "aws_key_id": "AKIA" + "ABCDEFGH234567QW",
    "github_token": "ghp_" + "aB3d" * 9,
    "gitlab_token": "glpat-" + "aB3d-" * 4,
    "google_key": "AIza" + "aB3_-" * 7,
    "huggingface_token": "hf_" + "aBcD" * 8 + "xY",
    "npm_token": "npm_" + "aB3d" * 9,
    "openai_key": "sk-proj-" + "aB3d_" * 10,
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA",
    "pypi_token": "pypi-AgEIcHlwaS5vcmc" + "aB3d-" * 12,
    "slack_token": "xoxb-123456789012-abcdefABCDEF",
    "stripe_key": "sk_live_" + "aB3d" * 6,
}
HARMLESS = [
    "",
    "ask-anthropic about hf_hub_download and npm_install",
    "AKIAIOSFODNN7EXAMPLE",
    "-----BEGIN PUBLIC KEY-----\nMIIEowIBAAKCAQEA",
    "-----BEGIN RSA PRIVATE KEY----- is how the file starts",
    "sk-learn, sk-proj-short, ghp_short",
    "f" * 64,
]


@pytest.mark.parametrize("kind", sorted(SECRETS))
def test_every_kind_of_secret_is_found_in_the_text_that_has_it(kind: str) -> None:
    found = secrets_in(pl.Series([*HARMLESS, f'export TOKEN="{REAL[kind]}"; run']))
    assert {name: mask.to_list() for name, mask in found.items()} == {kind: [False] * len(HARMLESS) + [True]}


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\nMIIEowIBAAKCAQEA",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\\nVersion: GnuPG v1\\n\\nlQOYBF0ZJxEBCADM",
        "-----BEGIN OPENSSH PRIVATE KEY-----\r\nb3BlbnNzaC1rZXktdjEA",
    ],
)
def test_a_private_key_is_found_behind_its_headers_and_in_json(key: str) -> None:
    assert list(secrets_in(pl.Series([key]))) == ["private_key"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run_dir: /home/jane/runs/x\n", True),
        ('{"model":"/srv/models/base"}', True),
        ("model: ~/models/base", True),
        ("file:///data/x.jsonl", True),
        ("run_dir: runs/quickstart", False),
        ("endpoints: [http://127.0.0.1:8000/v1/chat]", False),
        ("hf://datasets/org/name/data", False),
        ("application/json or 1/2/3", False),
    ],
)
def test_local_paths_are_told_from_addresses(text: str, told: bool) -> None:
    assert list(sensitive_in(pl.Series([text]), PATH)) == [("path", LOCAL_PATH)] * told


def test_what_only_looks_like_a_secret_is_none() -> None:
    assert secrets_in(pl.Series(HARMLESS)) == {}


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
