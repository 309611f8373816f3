"""Secrets and personal data in texts, by patterns.

A secret is what lets in whoever holds it: tokens whose issuers gave them a form that can be recognised (documented by
GitHub, "token formats", and by those that ``SECRETS`` names), private keys (RFC 7468, RFC 4880), JSON web tokens (RFC
7519), bearer tokens (RFC 6750), basic authentication (RFC 7617), passwords in addresses (RFC 3986), and random values
behind a name such as ``X_API_KEY``. Other passwords have no form and are not found. Personal data are e-mail addresses
and telephone numbers in the international form (ITU-T E.123 and E.164); names and postal addresses have no form and are
not found. Local paths tell where things lie on the machine that made them, often with the name of its user.

Forms of more providers are in ``secret_rules.yaml``; ``encoded`` undoes encodings. Patterns are in the syntax of Rust's
``regex``, which has no look-around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import polars as pl

from agentmill.pipelines.sensitive.encoded import BASE64, HEX, SPLIT_LINES, decoded
from agentmill.schemas.config import read_yaml

Sort = Literal["secret", "personal", "path"]
"""What counts as a credential, as personal data, and as a trace of a machine."""

Kind = tuple[Sort, str]

ESCAPE = r"\\[abefnrtv]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|\[[0-9;]*m"
"""What ends with a letter or digit and is none: an escape in JSON or source code, however often it was escaped, in an
address, or of a terminal. Tool calls and dead letters are JSON in a column, where a line ends so."""

EDGE = r"(?-u:\b)"
"""Between what may be part of a name in ASCII and what may not; other scripts need no space before a token."""
START = rf"(?:{EDGE}|_|{ESCAPE})"
END = rf"(?:{EDGE}|_)"
"""Behind a token that has no ``_`` itself; an ``_`` there is part of another name."""
GAP = r"(?:[\s\"'`:=,>]|\\+[nrt]?)"
"""What is between a name and its value."""
LINE_END = r"(?:\n|\\+[rn])"
KEY_NAME = (
    r"(?:[Aa]pi[_-]?[Kk]ey|API[_-]?K(?:EY|ey)|SECRET_KEY|secret_key|secretKey|CLIENT_SECRET|client_secret|clientSecret"
    r"|A(?:CCESS|UTH)_TOKEN|a(?:ccess|uth)_token|a(?:ccess|uth)Token)"
)
"""What programs, headers and addresses call a key. The name alone is weak, so the value must look random."""

PASSWORD = r"[^\s/:@?#\"'`<>(){}\[\]\\|]+"
"""Of an address; that of a careless writer may hold ``@``, of which the last one is before the host."""

SECRETS: Mapping[str, str] = {
    "age_key": r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "anthropic_key": r"sk-ant-[a-z0-9]+-[A-Za-z0-9_-]{80,}",
    "aws_key_id": rf"(?:AKIA|ASIA)[A-Z2-7]{{16}}{END}",
    "aws_secret_key": rf"(?:[Ss]ecret_?[Aa]ccess_?[Kk]ey|SECRET_ACCESS_KEY){GAP}+"
    r"[A-Za-z0-9/+]{40}(?:[^A-Za-z0-9/+]|$)",
    "azure_key": r"AccountKey=[A-Za-z0-9/+]{86}==",
    "basic_auth": rf"(?:[Aa]uthorization|AUTH(?:ORIZATION)?){GAP}+[Bb]asic(?:\s|%20|\+)+[A-Za-z0-9+/_-]{{8,}}={{0,2}}"
    r"|curl [^\n]{0,200}?(?:-u|--user)[ =]?[\"']?[A-Za-z0-9._@+-]+:[^\s\"'$<>{}:\\]{6,}"
    r"|auth\\*\"\s*:\s*\\*\"[A-Za-z0-9+/]{16,}={0,2}\\*\"",
    "bearer_token": r"(?:[Bb]earer|BEARER)(?:\s|%20|\+)+[A-Za-z0-9._~+/-]{20,}",
    "cerebras_key": rf"csk-[a-z0-9]{{40,}}{END}",
    "databricks_token": rf"dapi[0-9a-f]{{32}}{END}",
    "github_token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{82}",
    "google_key": r"AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{40,}",
    "groq_key": rf"gsk_[A-Za-z0-9]{{52}}{END}",
    "huggingface_token": rf"hf_[A-Za-z0-9]{{34,}}{END}",
    "json_web_token": r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}",
    "langsmith_key": r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}",
    "named_key": rf"{KEY_NAME}{GAP}{{1,6}}[A-Za-z0-9+/_-]{{16,}}",
    "npm_token": rf"npm_[A-Za-z0-9]{{36}}{END}",
    "nvidia_key": r"nvapi-[A-Za-z0-9_-]{60,}",
    "openai_key": r"sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}",
    "openrouter_key": r"sk-or-v1-[0-9a-f]{64}",
    "perplexity_key": r"pplx-[A-Za-z0-9]{40,}",
    "private_key": r"BEGIN (?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----"
    rf"(?:[^A-Za-z0-9]|\\+[nrt]|[0-9]+[^A-Za-z0-9+/=]|[A-Za-z-]+: [^\n\\]*{LINE_END})*[A-Za-z0-9+/=]{{16}}",
    "pypi_token": r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}",
    "replicate_token": rf"r8_[A-Za-z0-9]{{37}}{END}",
    "sendgrid_key": r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "service_key": rf"sk-[A-Za-z0-9]{{32,}}{END}",
    "slack_token": r"xox[abeprs]-[0-9]{6,}-[A-Za-z0-9-]{10,}",
    "stripe_key": r"[rs]k_live_[A-Za-z0-9]{24,}|whsec_[A-Za-z0-9+/]{32,}",
    "together_key": r"tgp_v1_[A-Za-z0-9_-]{40,}",
    "url_password": rf"://[^\s/:@?#\"'`<>(){{}}\[\]\\|*^,;]*:{PASSWORD}(?:@{PASSWORD})*@[A-Za-z0-9][A-Za-z0-9.-]*",
    "xai_key": rf"xai-[A-Za-z0-9]{{60,}}{END}",
}
"""What refuses a publication, as it reads behind ``START``. ``service_key`` has the form that many took from OpenAI."""

RULES: Mapping[str, str] = {
    kind: str(pattern) for kind, pattern in read_yaml(Path(__file__).with_name("secret_rules.yaml")).items()
}
"""The same for more providers, from an open rule set; the file names its source and licence."""

NOTHING = r"\A\z."
"""Matches no text."""
EXAMPLE = r"EXAMPLE|x{8}|X{8}|0{8}"
"""What issuers put into the keys of their own documentation, and others in the place of a key."""
NO_TOKEN = r"^\D*$|(?i:your|example|placeholder|dummy)"
"""What documentation puts in the place of a token, and names that begin as one."""
HARMLESS: Mapping[str, str] = {
    **dict.fromkeys(RULES, NO_TOKEN),
    "basic_auth": r"(?i:your|example|base64|dXNlcjpwYXNz|dXNlcm5hbWU6cGFzc3dvcmQ|QWxhZGRpbjpvcGVuIHNlc2FtZQ)"
    r"|:\[[A-Z_]+_\d+\]$|[Bb]asic\W+(?:[a-z_-]+|[A-Z_-]+)=*$|:(?i:pass(?:word|wd)|changeme|secret)$|auth\W+[A-Za-z+/]*\W*$",
    "named_key": r"(?i:your|example|dummy|placeholder|sample|replace|insert|(?:my|test|fake|mock)[_-])"
    r"|[^A-Za-z0-9+/_-]\D*$|[^A-Za-z0-9+/_-][0-9_+/-]*$|[^A-Za-z0-9+/_-](?:[A-Za-z]+[_/-]+)+[A-Za-z]*[0-9]{0,2}$",
    "bearer_token": r"^\D*$|(?i:your|example|token[_.-])",
    "json_web_token": r"\.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9l",
    "url_password": r"(?i):(?:(?-i:\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+|[{(].*))|"
    r"[*.]+|%[s(].*|x+|changeme|admin|root|user|username|guest|test|postgres|mysql|"
    r"example|(?:my|your|some|the|db|user)?[_-]?(?:pass|password|passwd|pwd|secret|token|(?:api|access)?[_-]?key))@"
    r"|@(?:localhost|127\.0\.0\.1|(?:.*\.)?(?:example\.(?:com|org|net|edu)|example|test|invalid))$",
}
"""What has the form of a secret and is none: words, the tokens that jwt.io and RFC 7617 show, names in the place of a
value, and what documentation calls a password or a host (RFC 2606)."""

UNSPECIFIC = {"basic_auth", "bearer_token", "named_key", "service_key", "url_password"}
"""Kinds without a provider's form: lines put together by guess make too many of them out of ordinary words."""

ESCAPE_OF_ADDRESS = r"\\[nrt]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|\[[0-9;]+m"
"""As ``ESCAPE``, without what may also be a bracket or a Windows domain before a name: ``[m``, ``CORP\\bob``."""
LATIN = r"A-Za-z0-9\u00c0-\u024f"
LETTER_OF_JSON = r"\\u0(?:0[c-fC-F]|1[0-9a-fA-F])[0-9a-fA-F]"
"""An escape in JSON that is a letter of a name, as in ``m\\u00fcller``."""
ADDRESS = rf"(?:[{LATIN}._%+-]|{LETTER_OF_JSON})+@(?:[{LATIN}-]+\.)+[A-Za-z]{{2,}}\b"
EMAIL = rf"(?:{ESCAPE_OF_ADDRESS})?{ADDRESS}|(?:{ESCAPE_OF_ADDRESS})@"
"""With the escape before an address, whose letter is no part of it; an escape before ``@`` is no name (``NOBODY``)."""
NOBODY = (
    r"(?i)@(?:.*\.)?(?:example\.(?:com|org|net|edu)|example|test|invalid|localhost|local)$"
    rf"|^(?:{ESCAPE_OF_ADDRESS})?(?:git)?@|no-?reply"
)
"""Addresses that belong to nobody: domains of RFC 2606, users of Git hosts, senders that take no answer, and what only
an escape makes one, as before a decorator in code."""
PHONE = (
    rf"(?:^|[^A-Za-z0-9_+]|{ESCAPE})\+[1-9]\d{{0,2}}[ .-]\(?\d{{1,4}}\)?(?:[ .-]?\d{{2,4}}){{2,4}}\b"
    r"|(?:^|[^A-Za-z0-9_+\n\\])\+[1-9]\d{9,14}\b"
)
"""In groups, or in one as E.164 has it; a line of a difference may begin with ``+`` and any number."""

PATH = (
    rf"(?:^|[\s\"'=(\[,:]|{ESCAPE})(?:file://)?(?:\\*/|~\\*/)[\w.@+-]+(?:\\*/[\w.@+-]+)+"
    r"|[A-Za-z]:\\+Users\\+\w[\w.@+\\-]*"
)
"""An absolute path of two parts or more, or one in a home directory, as a value of a file of ours."""
SHARD = r'"shard":"/'
"""What a dead letter says in the place of an input that is large."""

EMAIL_ADDRESS, PHONE_NUMBER, LOCAL_PATH = "email_address", "phone_number", "local_path"

_OPEN = {kind: pattern for kind, pattern in RULES.items() if pattern.lstrip("(?:").startswith("[")}
_GROUPS = [
    (patterns, "|".join(f"(?:{pattern})" for pattern in patterns.values()))
    for patterns in (
        SECRETS,
        {kind: pattern for kind, pattern in RULES.items() if kind not in _OPEN},
        *({kind: pattern} for kind, pattern in _OPEN.items()),
    )
]
"""Patterns, and all of a group in one, without what must come before: this finds the few texts that hold any.

A pattern that begins with no certain letter would slow its whole group down, so each of these is alone.
"""


def sensitive_in(values: pl.Series, path: str | None = None) -> dict[Kind, pl.Series]:
    """For everything sensitive that occurs, which of ``values`` hold some (booleans).

    ``path`` as for ``sensitive_matches``.
    """
    return {kind: _mask(values, frame) for kind, frame in sensitive_matches(values, path)}


def secrets_in(values: pl.Series) -> dict[str, pl.Series]:
    """For every kind of secret that occurs, which of ``values`` hold one (booleans)."""
    return {kind: _mask(values, frame) for kind, frame in secret_matches(values)}


def personal_in(values: pl.Series) -> dict[str, pl.Series]:
    """For every kind of personal data that occurs, which of ``values`` hold some (booleans)."""
    return {kind: _mask(values, frame) for kind, frame in personal_matches(values)}


def sensitive_matches(values: pl.Series, path: str | None = None) -> Iterator[tuple[Kind, pl.DataFrame]]:
    """For everything sensitive that occurs, its matches: ``place`` of the value, ``match``, and ``source``.

    ``match`` includes what must be before and behind it. ``source`` is the text of the value that it was read from:
    the match itself, what was decoded, or null where the whole value was rewritten. ``path`` is how a local path is
    named there, ``PATH`` or ``SHARD``; without one these are not looked for.
    """
    yield from ((("secret", kind), frame) for kind, frame in secret_matches(values))
    yield from ((("personal", kind), frame) for kind, frame in personal_matches(values))
    if path is not None:
        paths = matches_of(values, values.str.contains(path), path, NOTHING)
        if len(paths):
            yield ("path", LOCAL_PATH), paths


def secret_matches(values: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    """The matches of every kind of secret that occurs, as ``sensitive_matches`` has them.

    A kind that is found only after decoding is named with its encoding, such as ``github_token behind base64``.
    """
    plain = dict(_plain_secrets(values))
    yield from plain.items()
    for encoding, texts in decoded(values):
        for kind, frame in _plain_secrets(texts["text"]):
            if encoding == SPLIT_LINES and kind in UNSPECIFIC:
                continue
            origin = frame["place"]
            hidden = frame.with_columns(place=texts["place"].gather(origin), source=texts["source"].gather(origin))
            # What is encoded apart is another secret; what is rewritten in its place may be the same one.
            if kind in plain and encoding not in (BASE64, HEX):
                hidden = hidden.join(plain[kind], on="place", how="anti")
            if len(hidden):
                yield f"{kind} behind {encoding}", hidden


def _plain_secrets(values: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    """As ``secret_matches``, without decoding anything."""
    for patterns, any_of_them in _GROUPS:
        places = values.str.contains(any_of_them).arg_true()
        likely = values.gather(places)
        for kind, pattern in patterns.items() if len(likely) else ():
            but = f"{EXAMPLE}|{HARMLESS.get(kind, EXAMPLE)}"
            # Without START a pattern is sought by the letters that it begins with, which is many times as fast.
            found = matches_of(likely, likely.str.contains(pattern), f"{START}(?:{pattern})", but)
            if len(found):
                yield kind, found.with_columns(place=places.gather(found["place"]))


def personal_matches(values: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    """The matches of every kind of personal data that occurs, as ``sensitive_matches`` has them."""
    kinds = {EMAIL_ADDRESS: ("@", EMAIL, NOBODY), PHONE_NUMBER: ("+", PHONE, EXAMPLE)}
    for kind, (literal, pattern, but) in kinds.items():
        found = matches_of(values, values.str.contains(literal, literal=True), pattern, but)
        if len(found):
            yield kind, found


def matches_of(values: pl.Series, candidates: pl.Series, pattern: str, but: str) -> pl.DataFrame:
    """The matches of ``pattern`` in the ``candidates`` (booleans) among ``values`` that do not match ``but``.

    The patterns are slow; what is cheap to see, such as that a text has no ``@``, is looked at before.
    """
    found = values.filter(candidates)
    matches = found.str.extract_all(pattern) if len(found) else pl.Series([], dtype=pl.List(pl.String))
    frame = pl.DataFrame({"place": candidates.arg_true(), "match": matches}).explode("match")
    real = frame.filter(pl.col("match").is_not_null() & ~pl.col("match").str.contains(but))
    return real.with_columns(source=pl.col("match"))


def _mask(values: pl.Series, frame: pl.DataFrame) -> pl.Series:
    """Which of ``values`` have a match in ``frame`` (booleans)."""
    return pl.repeat(False, len(values), eager=True).scatter(frame["place"].unique(), True)
