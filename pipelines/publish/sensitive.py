"""Secrets and personal data in texts, by patterns.

A secret is what lets in whoever holds it: tokens whose issuers gave them a form that can be told (documented by GitHub,
"token formats"; GitLab, Slack, Stripe, AWS, Google, npm, PyPI, Hugging Face, OpenAI, Anthropic) and private keys (RFC
7468, RFC 4880). Personal data are e-mail addresses and telephone numbers in the international form (ITU-T E.123);
names and postal addresses have no form and are not found. Local paths tell where things lie on the machine that made
them, often with the name of its user. Patterns are in the syntax of Rust's ``regex``, which has no look-around.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

Sort = Literal["secret", "personal", "path"]
"""What lets somebody in, what is said of a person, and what is said of a machine."""

Kind = tuple[Sort, str]

SECRETS: Mapping[str, str] = {
    "anthropic_key": r"\bsk-ant-[a-z0-9]+-[A-Za-z0-9_-]{80,}",
    "aws_key_id": r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b",
    "github_token": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{82}",
    "gitlab_token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "google_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "huggingface_token": r"\bhf_[A-Za-z0-9]{34,}\b",
    "npm_token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "openai_key": r"\bsk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}|\bsk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}\b",
    "private_key": r"-----BEGIN (?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:\s|\\[rn]|[A-Za-z-]+: [^\n\\]*(?:\n|\\[rn]))*[A-Za-z0-9+/=]{16}",
    "pypi_token": r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}",
    "slack_token": r"\bxox[abeprs]-[0-9]{6,}-[A-Za-z0-9-]{10,}",
    "stripe_key": r"\b[rs]k_live_[A-Za-z0-9]{24,}",
}
"""What refuses a publication."""

EMAIL = r"[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}\b"
NOBODY = r"(?i)@(?:.*\.)?(?:example\.(?:com|org|net|edu)|example|test|invalid|localhost|local)$|^git@|no-?reply"
"""Addresses that belong to nobody: domains of RFC 2606, users of Git hosts, senders that take no answer."""
EXAMPLE = r"EXAMPLE"
"""What issuers put into the keys of their own documentation."""

PHONE = r"(?:^|[^\w+])\+[1-9]\d{0,2}[ .-]\(?\d{1,4}\)?(?:[ .-]?\d{2,4}){2,4}\b"

PATH = r"(?:^|[\s\"'=(\[,])(?:file://)?(?:/|~/)[\w.@+-]+(?:/[\w.@+-]+)+"
"""An absolute path of two parts or more, or one in a home directory, as a value of a file of ours."""
SHARD = r'"shard":"/'
"""What a dead letter says in the place of an input that is large."""

EMAIL_ADDRESS, PHONE_NUMBER, LOCAL_PATH = "email_address", "phone_number", "local_path"

_ANY_SECRET = "|".join(f"(?:{pattern})" for pattern in SECRETS.values())


def sensitive_in(values: pl.Series, path: str | None = None) -> dict[Kind, pl.Series]:
    """For everything sensitive that occurs, which of ``values`` hold some (booleans).

    ``path`` is how a local path is told there, ``PATH`` or ``SHARD``; without one these are not looked for.
    """
    found: dict[Kind, pl.Series] = {("secret", kind): mask for kind, mask in secrets_in(values).items()}
    found |= {("personal", kind): mask for kind, mask in personal_in(values).items()}
    if path is not None and (mask := values.str.contains(path)).any():
        found["path", LOCAL_PATH] = mask
    return found


def secrets_in(values: pl.Series) -> dict[str, pl.Series]:
    """For every kind of secret that occurs, which of ``values`` hold one (booleans)."""
    if not values.str.contains(_ANY_SECRET).any():
        return {}
    found = {kind: holds(values, values.str.contains(pattern), pattern, EXAMPLE) for kind, pattern in SECRETS.items()}
    return {kind: mask for kind, mask in found.items() if mask.any()}


def personal_in(values: pl.Series) -> dict[str, pl.Series]:
    """For every kind of personal data that occurs, which of ``values`` hold some (booleans)."""
    kinds = {EMAIL_ADDRESS: ("@", EMAIL, NOBODY), PHONE_NUMBER: ("+", PHONE, EXAMPLE)}
    found = {
        kind: holds(values, values.str.contains(literal, literal=True), pattern, but)
        for kind, (literal, pattern, but) in kinds.items()
    }
    return {kind: mask for kind, mask in found.items() if mask.any()}


def holds(values: pl.Series, candidates: pl.Series, pattern: str, but: str) -> pl.Series:
    """Which of the ``candidates`` (booleans) among ``values`` hold a match of ``pattern`` that does not match ``but``.

    The patterns are slow; what is told fast, such as that a text has no ``@``, is told before.
    """
    if not candidates.any():
        return candidates
    frame = pl.DataFrame({"place": candidates.arg_true(), "match": values.filter(candidates).str.extract_all(pattern)})
    real = frame.explode("match").filter(pl.col("match").is_not_null() & ~pl.col("match").str.contains(but))
    return pl.repeat(False, len(values), eager=True).scatter(real.get_column("place").unique(), True)
