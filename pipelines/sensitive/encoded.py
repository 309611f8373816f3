"""Texts as they read without an encoding: base64, hexadecimal, escapes, terminal colours, tokens broken over lines.

Each encoding is undone once; what is encoded twice stays hidden. A quick test by pattern comes first, so a text without
an encoding costs one pass per encoding.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator

import polars as pl

BASE64, HEX, ESCAPES, ANSI, SPLIT_LINES = "base64", "hex", "escapes", "ANSI codes", "split lines"

BASE64_RUN = r"(?:[A-Za-z0-9+/]{60,80}(?:\r?\n|(?:\\+r)?\\+n)[ \t]*)+[A-Za-z0-9+/]+={0,2}|[A-Za-z0-9+/_-]{24,}={0,2}"
"""Lines of one width, as MIME and ``base64`` write them, or one run."""
BASE64_OF_ASCII = (
    r"^(?:[A-Za-z0-9+/_-]{4})*?"
    r"(?:[ACDI-Za-f][AC-HQS-Xgi-nwyz0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]){4}"
)
"""The letters that 12 bytes of ASCII make, in UTF-8 or UTF-16: tells base64 of a text from long names and paths."""
HEX_RUN = r"(?:[0-9a-fA-F]{2}){20,}"
"""Its digits are letters of base64 as well, so it is sought in runs of that only."""
ESCAPE_OF_ASCII = r"%[2-7][0-9a-fA-F]|\\u00[2-7][0-9a-fA-F]|\\x[2-7][0-9a-fA-F]|\\/"
ANSI_CODE = r"(?:\x1b|\\+(?:u001[bB]|x1[bB]|033|e))\[[0-9;?]*[A-Za-z]"

BREAK = r"(?:[\"'`]?[ \t]*[+\\]?[ \t]*(?:\r?\n|(?:\\+r)?\\+n)[ \t]*[+>|]?[ \t]*(?:[bfru]?\\*[\"'`])?)"
"""A line end with what holds two parts of a text together there: quotes, a plus, a backslash."""
PROVIDER = (
    r"(?:sk-|[rs]k_live_|gh[pousr]_|github_pat_|glpat-|hf_|AKIA|ASIA|AIza|GOCSPX-|ya29\.|xox[abeprs]-|npm_|pypi-|dckr_"
    r"|nvapi-|SG\.|gsk_|xai-|pplx-|r8_|tgp_v1_|csk-|dapi|lsv2_|eyJ|AGE-SECRET-KEY-)"
)
SPLIT_TOKEN = rf"(?:^|[^A-Za-z0-9+/]|\\[nrt]){PROVIDER}[A-Za-z0-9._-]*(?:{BREAK}[A-Za-z0-9._-]{{4,}}){{1,2}}"
"""What begins as a provider's token and goes on in the next line or two; in base64 such letters come by chance."""
FEW_DIGITS = r"^(?:[^0-9]*[0-9]){0,2}[^0-9]*$"
"""Names and words that meet when lines are put together; a token of that length has more digits."""

SHORTEST = 16
"""Bytes that a secret has at least."""


def _literals() -> dict[str, str]:
    """The escapes of printable ASCII characters, in either case of their digits, and that of a slash in JSON."""
    found = {"\\/": "/"}
    for code in range(0x20, 0x7F):
        for form in ("%{:02x}", "%{:02X}", "\\u00{:02x}", "\\u00{:02X}", "\\x{:02x}", "\\x{:02X}"):
            found[form.format(code)] = chr(code)
    return found


LITERALS = _literals()


def decoded(values: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    """By encoding, what ``values`` hold in it: ``text``, the ``place`` of the value that it came from, and ``source``.

    ``source`` is what was decoded, as the value has it; null where the whole value was rewritten.
    """
    runs = matches(values, BASE64_RUN)
    digits = matches(runs["text"], HEX_RUN)
    digits = digits.with_columns(runs["place"].gather(digits["place"]))
    for encoding, frame in (
        (BASE64, readable(runs.filter(runs["text"].str.contains(BASE64_OF_ASCII)), from_base64)),
        (HEX, readable(digits, from_hex)),
        (ESCAPES, rewritten(values, ESCAPE_OF_ASCII, without_escapes)),
        (ANSI, rewritten(values, ANSI_CODE, lambda texts: texts.str.replace_all(ANSI_CODE, ""))),
        (SPLIT_LINES, joined(values)),
    ):
        if len(frame):
            yield encoding, frame


def candidates(values: pl.Series, pattern: str) -> pl.DataFrame:
    """The values that match ``pattern``, with their places."""
    likely = values.str.contains(pattern)
    return pl.DataFrame({"place": likely.arg_true(), "text": values.filter(likely)})


def rewritten(values: pl.Series, pattern: str, rewrite: Callable[[pl.Series], pl.Series]) -> pl.DataFrame:
    """The values that match ``pattern``, rewritten."""
    frame = candidates(values, pattern)
    if not len(frame):
        return frame
    return frame.with_columns(rewrite(frame["text"]).alias("text"), source=pl.lit(None, pl.String))


def without_escapes(texts: pl.Series) -> pl.Series:
    """Escapes replaced by their characters, however many backslashes they have."""
    return texts.str.replace_all(r"\\\\+", "\\").str.replace_many(list(LITERALS), list(LITERALS.values()))


def matches(values: pl.Series, pattern: str) -> pl.DataFrame:
    """All matches of ``pattern``, with the places of their values."""
    frame = candidates(values, pattern)
    return frame.with_columns(pl.col("text").str.extract_all(pattern)).explode("text").drop_nulls("text")


def readable(runs: pl.DataFrame, decode: Callable[[str], str | None]) -> pl.DataFrame:
    """The ``runs`` that ``decode`` to text, decoded."""
    texts = pl.Series("text", [decode(each) for each in runs["text"]], pl.String)
    return runs.with_columns(texts, source=pl.col("text")).drop_nulls("text")


def joined(values: pl.Series) -> pl.DataFrame:
    """Tokens broken over lines, put together."""
    frame = matches(values, SPLIT_TOKEN)
    whole = frame.with_columns(pl.col("text").str.replace_all(BREAK, ""), source=pl.col("text"))
    return whole.filter(~pl.col("text").str.contains(FEW_DIGITS))


def from_base64(run: str) -> str | None:
    """The text in base64 of either alphabet, padded or not; ``None`` if it holds something else."""
    letters = re.sub(r"\\+[rn]|\s", "", run).rstrip("=").translate(STANDARD)
    # A single letter over holds no whole byte, and the decoder refuses it.
    letters = letters[: len(letters) - (len(letters) % 4 == 1)]
    return printable(base64.b64decode(letters + "=" * (-len(letters) % 4)))


STANDARD = str.maketrans("-_", "+/")


def from_hex(run: str) -> str | None:
    """The text in hexadecimal; ``None`` if it holds something else."""
    return printable(binascii.unhexlify(run))


def printable(data: bytes) -> str | None:
    """``data`` as text in UTF-8 or, as Windows has it, UTF-16; ``None`` for other data."""
    if len(data) < SHORTEST:
        return None
    if data[1::2].count(0) == len(data) // 2:
        data = data[::2]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
