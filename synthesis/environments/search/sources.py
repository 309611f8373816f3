"""Which corpus an environment is over: files by their path, or invented articles by their name.

``invented:ARTICLES/NUMBER`` is a corpus of invented articles that is the same on every machine. It is written to the
cache as JSON lines when it is first read, so environments over it need no files of the user.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import cache_folder
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.synthesis.environments.search.invented import invented_articles

INVENTED = "invented:"
FEWEST_ARTICLES, MOST_ARTICLES = 20, 10_000
_ONE = re.compile(rf"{INVENTED}([1-9]\d{{0,8}})/([1-9]\d{{0,8}})")


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The corpus of an environment: its path or name, and its ``corpus_digest``."""

    path: str
    digest: str


def source_of(path: Path | str, corpus: str) -> str:
    """The source that names a corpus."""
    return msgspec.json.encode(Source(str(path), corpus)).decode()


def read_source(spec: EnvironmentSpec) -> Source:
    """The corpus that an environment names, with the path of its files.

    Raises ``ValueError`` if it names none, ``UserError`` if invented articles cannot be written.
    """
    try:
        source = msgspec.json.decode(spec.source, type=Source)
    except msgspec.DecodeError as error:
        raise ValueError(f'its source names no corpus as {{"path": …, "digest": …}} ({error})') from None
    return msgspec.structs.replace(source, path=str(corpus_path(source.path))) if is_invented(source.path) else source


def invented_corpora(name: str, n: int) -> list[str]:
    """The names of the ``n`` corpora that ``invented:ARTICLES`` means. Raises ``ValueError`` for another name."""
    names = [f"{name}/{number}" for number in range(1, n + 1)]
    if not all(map(is_invented, names)):
        raise ValueError(
            f"`corpus: {name}` names no invented articles; expected {INVENTED}N, where N is the number of articles of"
            f" a corpus, from {FEWEST_ARTICLES} to {MOST_ARTICLES:,}"
        )
    return names


def is_invented(name: str) -> bool:
    """Whether a corpus is invented articles, and no file."""
    found = _ONE.fullmatch(name)
    return found is not None and FEWEST_ARTICLES <= int(found[1]) <= MOST_ARTICLES


def corpus_path(name: str) -> Path:
    """The file or folder of a corpus; the articles of ``invented:ARTICLES/NUMBER`` are written if they are not there.

    Raises ``UserError`` where they cannot be written.
    """
    if not is_invented(name):
        return Path(name)
    articles, number = name.removeprefix(INVENTED).split("/")
    return _written(cache_folder("corpora"), int(articles), int(number))


@lru_cache(maxsize=256)
def _written(folder: Path, articles: int, number: int) -> Path:
    path = folder / f"invented-{articles}-{number}.jsonl"
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in invented_articles(articles, number))
    try:
        # Compared, so that articles of an older version are not taken for these.
        if not path.exists() or path.read_bytes() != lines:
            folder.mkdir(parents=True, exist_ok=True)
            # Written elsewhere and renamed, since other processes may read or write the same.
            descriptor, building = tempfile.mkstemp(prefix=f".{path.stem}-", dir=folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(lines)
            Path(building).replace(path)
    except OSError as error:
        raise UserError(
            f"the corpus {INVENTED}{articles}/{number} cannot be kept in {folder} ({error.strerror or error})\n"
            "set AGENTMILL_CACHE to a folder that can be written",
            ErrorCode.NOT_WRITABLE,
        ) from error
    return path
