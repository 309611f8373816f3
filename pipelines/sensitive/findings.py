"""What is sensitive in groups of texts, value by value, and texts with placeholders in the place of these values.

A group is what belongs together, such as the texts of one trajectory or row. The patterns are those of publishing, so
what is replaced here is what would refuse a publication. Texts are scanned many at a time: patterns are compiled for
each call, which costs milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import polars as pl

from agentmill.pipelines.sensitive.encoded import PROVIDER, SPLIT_LINES
from agentmill.pipelines.sensitive.patterns import (
    ADDRESS,
    EDGE,
    EMAIL_ADDRESS,
    END,
    ESCAPE_OF_ADDRESS,
    GAP,
    KEY_NAME,
    LOCAL_PATH,
    PATH,
    PHONE_NUMBER,
    RULES,
    SECRETS,
    Sort,
    sensitive_matches,
)

SORTS: tuple[Sort, ...] = get_args(Sort)

BATCH_CHARACTERS = 8_000_000
"""Texts are scanned together up to this length, which bounds the memory."""

LEAST_ALONE = 8
"""A shorter value, such as a password in an address, is replaced only where it was found: it may be a word."""

BEHIND = " behind "
"""Between the kind and the encoding of a secret that was found by decoding."""

_LAST_CHARACTER = re.compile(r"\(\?:(\[\^[^\]]+\])\|\$\)$")
"""The end of a pattern whose last character belongs to the text behind the secret."""

_OF_KEY = r"(?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----"
_BREAK = r"(?:\s|\\+[nr])*+"
_BETWEEN = r"(?:[^A-Za-z0-9]|\\[nrt]|[0-9]+[^A-Za-z0-9+/=]|[A-Za-z-]+: [^\n\\]*(?=[\n\\]))*+"
"""What is between two lines of a key: their ends, numbers and quotes, and headers before the first."""
KEY_BLOCK = re.compile(
    rf"-*BEGIN {_OF_KEY}"
    rf"(?:(?:(?!BEGIN ).)*?-----END {_OF_KEY}"
    rf"|(?:{_BETWEEN}[A-Za-z0-9+/=]{{16,}})+"
    # The last line of a key may be short.
    rf"(?:{_BREAK}[A-Za-z0-9+/=]{{1,15}}(?={_BREAK}(?:-----END|\Z)))?(?:{_BREAK}-----END[A-Z -]*)?)",
    re.DOTALL,
)
"""A private key with all its lines; of one that was cut off, what looks like lines of it."""

VALUES: Mapping[str, str] = {
    "aws_secret_key": r"([A-Za-z0-9/+]{40})[^A-Za-z0-9/+]?$",
    "azure_key": r"=([A-Za-z0-9/+]{86}==)$",
    "basic_auth": r"[Bb]asic(?:\s|%20|\+)+([A-Za-z0-9+/_-]{8,}={0,2})$"
    r"|(?:-u|--user)[ =]?[\"']?[A-Za-z0-9._@+-]+:([^\s\"'$<>{}:\\]{8,})$"
    r"|(?:-u|--user)[ =]?[\"']?([A-Za-z0-9._@+-]+:[^\s\"'$<>{}:\\]{6,})$"
    r"|\"([A-Za-z0-9+/]{16,}={0,2})\\*\"$",
    "bearer_token": r"(?:\s|%20|\+)([A-Za-z0-9._~+/-]{20,})$",
    "named_key": rf"{KEY_NAME}{GAP}{{1,6}}([A-Za-z0-9+/_-]{{16,}})$",
    "url_password": r"://[^/:]*:([^/]{8,})@|://([^/]*:[^/]+)@",
    EMAIL_ADDRESS: rf"^(?:{ESCAPE_OF_ADDRESS})?({ADDRESS})$",
    PHONE_NUMBER: r"(\+[1-9].*)$",
    LOCAL_PATH: r"((?:file://)?(?:\\*/|~\\*/)[\w.@+-]+(?:\\*/[\w.@+-]+)+|[A-Za-z]:\\+Users.*)$",
}
"""Of kinds that are found by what is around them: the value in a match, as a group. Of others it is the whole match.

Of a user and a password it is the password, which may be anywhere by itself; a short one is replaced with its user.
"""


class Finding(NamedTuple):
    """One sensitive value in a text. ``value`` is ``None`` where an encoding hides which part of the text it is.

    ``text`` is the number of the text in its group; ``match`` is what the pattern found, with what is around the value.
    """

    text: int
    sort: Sort
    kind: str
    match: str
    value: str | None


def findings(groups: Iterable[Sequence[str]], sorts: Collection[Sort] = SORTS) -> Iterator[list[Finding]]:
    """What of these sorts is in each group, in the order of the groups."""
    batch: list[Sequence[str]] = []
    size = 0
    for group in groups:
        batch.append(group)
        size += sum(map(len, group))
        if size >= BATCH_CHARACTERS:
            yield from _scan(batch, sorts)
            batch, size = [], 0
    if batch:
        yield from _scan(batch, sorts)


def counts(found: Iterable[Finding]) -> Counter[Sort]:
    """How many different values of each sort were found; one that is repeated counts once."""
    return Counter(sort for sort, _ in {(each.sort, each.value or each.match) for each in found})


def _scan(groups: Sequence[Sequence[str]], sorts: Collection[Sort]) -> list[list[Finding]]:
    places = [(group, text) for group, texts in enumerate(groups) for text in range(len(texts))]
    values = pl.Series([text for texts in groups for text in texts], dtype=pl.String)
    found: list[list[Finding]] = [[] for _ in groups]
    for (sort, kind), frame in sensitive_matches(values, PATH if "path" in sorts else None):
        for place, match, source in frame.select("place", "match", "source").iter_rows() if sort in sorts else ():
            group, text = places[place]
            values_found = values_of(kind, match, source, groups[group][text])
            found[group] += [Finding(text, sort, kind, match, value) for value in values_found]
    return found


def values_of(kind: str, match: str, source: str | None, text: str) -> list[str | None]:
    """The values that a match in ``text`` means, without what is around them; one is ``None`` if it has no place."""
    if source is None:
        return [None]
    if BEHIND in kind:
        start = re.search(PROVIDER, source) if kind.endswith(SPLIT_LINES) else None
        return [source[start.start() if start else 0 :]]
    if kind == "private_key":
        return list(KEY_BLOCK.findall(text))
    inner = re.search(VALUES.get(kind) or _pattern(kind), match, re.ASCII if kind != LOCAL_PATH else 0)
    return [match if inner is None else next(group for group in inner.groups() if group is not None)]


def _pattern(kind: str) -> str:
    """The pattern of a kind in Python's syntax, without the character behind it, as a group."""
    pattern = {**SECRETS, **RULES}[kind].replace(END, r"(?=\b|_)").replace(EDGE, r"\b")
    edge = _LAST_CHARACTER.search(pattern)
    return f"({pattern})" if edge is None else f"({pattern[: edge.start()]})(?:{edge[1]}|$)"


class Placeholders:
    """Replaces the values that were found in a group of texts: the same value by the same ``[KIND_1]`` everywhere.

    A value without a place is left; scan again what was replaced.
    """

    def __init__(self, texts: Sequence[str], found: Iterable[Finding]) -> None:
        known = [(each, each.value) for each in found if each.value]
        known.sort(key=lambda pair: (pair[0].text, texts[pair[0].text].find(pair[1])))
        self.by_value: dict[str, str] = {}
        """The placeholder of each value."""
        self.kinds: Counter[str] = Counter()
        """How many values there are of each kind."""
        contexts: dict[str, list[str]] = {}
        numbers: Counter[str] = Counter()
        for each, value in known:
            kind = each.kind.partition(BEHIND)[0]
            label = kind.upper()
            if value not in self.by_value:
                self.kinds[kind] += 1
                # An earlier redaction may have left placeholders, which mean other values.
                numbers[label] = numbers[label] or _highest(label, texts)
                numbers[label] += 1
                self.by_value[value] = f"[{label}_{numbers[label]}]"
            contexts.setdefault(value, []).append(each.match)
        # The longest first, since a value may be a part of another.
        self._replacements = [
            (old, old.replace(value, self.by_value[value]))
            for value in sorted(self.by_value, key=lambda value: (-len(value), value))
            for old in ([value] if len(value) >= LEAST_ALONE else sorted(set(contexts[value])))
        ]

    def replace(self, text: str) -> str:
        """``text`` with placeholders."""
        for old, new in self._replacements:
            text = text.replace(old, new)
        return text


def _highest(label: str, texts: Iterable[str]) -> int:
    """The highest number that a placeholder of this kind has in the texts; 0 if there is none."""
    pattern = re.compile(rf"\[{label}_(\d{{1,9}})\]")
    return max((int(number) for text in texts for number in pattern.findall(text)), default=0)
