"""Duplicates: words and shingles, MinHash signatures, candidate pairs by locality-sensitive hashing, and groups.

The similarity of two sequences of tokens is the Jaccard similarity of their sets of shingles, the runs of ``size``
tokens. MinHash (Broder 1997) gives each set a signature of ``PERMUTATIONS`` numbers, any of which two sets share with
the probability of their similarity s, so the share of equal numbers estimates s with a standard deviation of
sqrt(s (1 - s) / 256), 0.025 at 0.8. A signature is cut into b bands of r numbers, and two sets are a candidate pair if
they share a whole band, which has the probability 1 - (1 - s^r)^b (Leskovec, Rajaraman and Ullman, Mining of Massive
Datasets, chapter 3).

With 256 numbers ``banding`` takes 32 bands of 8 for a similarity of 0.8: a pair of just 0.8 is found with probability
0.997, one of 0.5 with 0.12 and one of 0.3 with 0.002. With 128 numbers the same recall needs bands of 6, which finds
0.28 of the pairs of 0.5; every one of these is compared. Signatures are of ``rensa``, whose R-MinHash takes all
shingles and not a sample of them.

A candidate pair counts if its similarity is at least ``near``. The estimate decides where it is more than four standard
deviations away from ``near``; otherwise the sets themselves are compared. Everything here is the same for the same
sequences and the same seed, whatever the order of the sequences.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

PERMUTATIONS = 256
"""Numbers of a signature, each of four bytes."""

RECALL = 0.995
"""Least probability that a pair of just the similarity asked for becomes a candidate."""

DEVIATIONS = 4.0
"""An estimate that is more standard deviations away from the threshold than this decides without the sets."""

NEIGHBOURS = 32
"""A sequence is compared with at most so many that share a band with it, or pairs would grow as the square of them."""

BATCH_TOKENS = 200_000
"""Tokens whose signatures are computed together: some 15 MB."""

PAIRS_AT_ONCE = 8_192
"""Pairs whose signatures are compared together: 16 MB."""

Hashes = npt.NDArray[np.uint64]
Signatures = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]

_SPACED = bytes(byte if chr(byte).isalnum() or byte == ord("_") else ord(" ") for byte in range(128)).ljust(256)
# Scripts without spaces between words: kana, Chinese characters. A character of these counts as a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
MARKS = "".join(
    character
    for character in map(
        chr, (*range(0x300, 0x3100), *range(0xA600, 0xAC00), *range(0xFB00, 0xFE30), *range(0x10A00, 0x12000))
    )
    if unicodedata.category(character) in ("Mn", "Mc")
)
"""Combining marks, such as the vowels of Indic scripts: parts of words, and none of the letters of ``\\w``."""
_MARK = re.compile(f"[{MARKS}]")
_MARKED_WORD = re.compile(rf"[{_UNSPACED}][{MARKS}]*|(?:[^\W{_UNSPACED}]+[{MARKS}]*)+")


def words_of(texts: Iterable[str]) -> list[bytes]:
    """The words of texts, in order: runs of letters with their marks, digits and ``_``; no punctuation or spaces.

    They are in lower case and composed (Unicode's NFC).
    """
    found: list[bytes] = []
    for text in texts:
        lower = text.lower()
        # The table for bytes is three times as fast as the expression, and gives the same for ASCII.
        if lower.isascii():
            found += lower.encode().translate(_SPACED).split()
        else:
            lower = unicodedata.normalize("NFC", lower)
            pattern = _MARKED_WORD if _MARK.search(lower) else _WORD
            found += " ".join(pattern.findall(lower)).encode(errors="surrogatepass").split()
    return found


def shingles(sequences: Sequence[Sequence[bytes]], size: int) -> tuple[Hashes, Numbers]:
    """The hashes of all shingles of some sequences of tokens, one after the other, and where each sequence begins.

    ``size`` is in tokens; a sequence with fewer is one shingle. Returns the hashes (total,), in which one may come
    several times, and the offsets (sequences + 1,). Raises ``ValueError`` for an empty sequence.
    """
    if not all(sequences):
        raise ValueError("a sequence without tokens has no shingles")
    rows = RMinHash.hash_token_sets([list(each) for each in sequences])
    lengths = np.array([max(len(row), size) for row in rows], dtype=np.int64)
    ends = np.cumsum(lengths)
    tokens = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint64)
    for row, start in zip(rows, ends - lengths, strict=True):
        tokens[start : start + len(row)] = row
    counts = lengths - size + 1
    windows = max(0, len(tokens) - size + 1)
    mixed = np.zeros(windows, dtype=np.uint64)
    for place in range(size):
        mixed = _mix(mixed ^ tokens[place : place + windows])
    # Windows that reach from one sequence into the next are none of either.
    place_in_row = np.arange(windows) - np.repeat(ends - lengths, lengths)[:windows]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return mixed[place_in_row < np.repeat(counts, lengths)[:windows]], offsets


def jaccard(first: Hashes, second: Hashes) -> float:
    """The Jaccard similarity of two sets of hashes, each sorted and without repetition; 0 of two empty ones."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / max(1, len(first) + len(second) - shared)


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """The probability that two sets of this similarity share one of ``bands`` bands of ``rows`` numbers."""
    return 1.0 - (1.0 - similarity**rows) ** bands


def banding(near: float) -> tuple[int, int]:
    """The number of bands, and of numbers in each, for pairs of at least this similarity.

    The bands are the longest that find a pair of just this similarity with probability ``RECALL``: a longer band has
    fewer candidates that are no duplicates.
    """
    fitting = (rows for rows in range(PERMUTATIONS, 0, -1) if _found(near, rows) >= RECALL)
    rows = next(fitting, 1)
    return PERMUTATIONS // rows, rows


def margin(near: float) -> float:
    """How far from ``near`` an estimate has to be to decide alone."""
    # One number more, since an estimate of 1 does not mean that the sets are equal.
    return DEVIATIONS * math.sqrt(near * (1 - near) / PERMUTATIONS) + 1 / PERMUTATIONS


class SignatureTable:
    """Signatures of sequences, numbered as they are added; ``size`` tokens make a shingle.

    Memory is 1,024 bytes for each sequence that was added; the rest of ``capacity`` is only reserved.
    """

    def __init__(self, capacity: int, size: int, seed: int) -> None:
        self._signatures = np.empty((capacity, PERMUTATIONS), dtype=np.uint32)
        self._size = size
        self._seed = seed
        self._batch: list[Sequence[bytes]] = []
        self._tokens = 0
        self._filled = 0

    def add(self, tokens: Sequence[bytes]) -> None:
        """Add a sequence of at least one token. Raises ``ValueError`` for an empty one."""
        if not tokens:
            raise ValueError("a sequence without tokens has no signature")
        self._batch.append(tokens)
        self._tokens += len(tokens)
        if self._tokens >= BATCH_TOKENS:
            self._flush()

    def signatures(self) -> Signatures:
        """The signatures of all that were added, (sequences, ``PERMUTATIONS``)."""
        self._flush()
        return self._signatures[: self._filled]

    def _flush(self) -> None:
        if self._batch:
            hashes, offsets = shingles(self._batch, self._size)
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, PERMUTATIONS, self._seed)
            end = self._filled + len(self._batch)
            self._signatures[self._filled : end] = matrix.to_rows()
            self._filled = end
        self._batch, self._tokens = [], 0


def estimates(signatures: Signatures, first: Numbers, second: Numbers) -> npt.NDArray[np.float64]:
    """The estimated similarity of each pair, (pairs,)."""
    found = np.empty(len(first))
    for start in range(0, len(first), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        found[part] = (signatures[first[part]] == signatures[second[part]]).mean(axis=1)
    return found


class Groups:
    """Connected components of numbered things, by union-find; the smallest number of a group represents it."""

    def __init__(self, size: int) -> None:
        self._parents: Numbers = np.arange(size)

    def find(self, number: int) -> int:
        """The number that represents the group."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = int(parents[number])
        return number

    def join(self, first: int, second: int) -> None:
        """Make the groups of two things one."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parents[high] = low

    def roots(self) -> Numbers:
        """The representative of each, (size,)."""
        while True:
            above = self._parents[self._parents]
            if np.array_equal(above, self._parents):
                return above
            self._parents = above


class Linker:
    """Joins near-duplicates, band by band, and notes the pairs that only the sets can decide.

    ``scopes`` (sequences,) are equal for sequences that may be duplicates of each other. ``ranks`` (sequences,) orders
    them by what they are and not by their number: of more than ``NEIGHBOURS`` sequences with one band, each is compared
    with those that follow it, first those that share the next band, too.
    """

    def __init__(self, signatures: Signatures, scopes: Hashes, ranks: Numbers, near: float) -> None:
        self.bands, self._rows = banding(near)
        self.groups = Groups(len(signatures))
        self._signatures = signatures
        self._scopes = scopes
        self._order = np.argsort(ranks, kind="stable")
        self._near = near
        self._undecided: Numbers = np.empty(0, dtype=np.int64)

    def compare(self, band: int) -> None:
        """Compare the sequences that share a band. Takes memory for two hashes of each, and for undecided pairs."""
        keys = self._keys(band)
        by_key = np.lexsort((self._keys((band + 1) % self.bands), keys))
        keys, numbers = keys[by_key], self._order[by_key]
        undecided = [self._undecided]
        for distance in range(1, NEIGHBOURS + 1):
            same = np.flatnonzero(keys[distance:] == keys[:-distance])
            if not len(same):
                break
            undecided.append(self._weigh(numbers[same], numbers[same + distance]))
        self._undecided = np.unique(np.concatenate(undecided))

    def undecided(self) -> Numbers:
        """The pairs whose similarity is too near to the threshold for an estimate, the most similar ones first.

        Shape (pairs, 2).
        """
        first, second = np.divmod(self._undecided, max(1, len(self._signatures)))
        roots = self.groups.roots()
        apart = roots[first] != roots[second]
        first, second = first[apart], second[apart]
        by_estimate = np.argsort(-estimates(self._signatures, first, second), kind="stable")
        return np.stack([first[by_estimate], second[by_estimate]], axis=1)

    def decide(self, pairs: Numbers, sets: ShingleFile) -> Iterator[None]:
        """Join those of ``pairs`` (pairs, 2) whose sets are as similar as asked for.

        Yields after each, so that one may stop.
        """
        for first, second in (map(int, pair) for pair in pairs):
            if self.groups.find(first) != self.groups.find(second) and sets.jaccard(first, second) >= self._near:
                self.groups.join(first, second)
            yield

    def _keys(self, band: int) -> Hashes:
        """A hash of the band and the scope of each sequence, by rank."""
        numbers = self._signatures[:, band * self._rows : (band + 1) * self._rows][self._order]
        keys = self._scopes[self._order]
        for column in numbers.T:
            keys = _mix(keys ^ column)
        return keys

    def _weigh(self, first: Numbers, second: Numbers) -> Numbers:
        """Join the pairs that are surely near-duplicates; those that are undecided, a number for each."""
        roots = self.groups.roots()
        apart = roots[first] != roots[second]
        first, second = np.minimum(first, second)[apart], np.maximum(first, second)[apart]
        found, doubt = estimates(self._signatures, first, second), margin(self._near)
        sure = found >= self._near + doubt
        for pair in zip(first[sure].tolist(), second[sure].tolist(), strict=True):
            self.groups.join(*pair)
        open_ = (found >= self._near - doubt) & ~sure
        return first[open_] * len(self._signatures) + second[open_]


class ShingleFile:
    """Sets of shingles of ``size`` tokens in a temporary file, eight bytes for each, until it is closed."""

    def __init__(self, size: int) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self._size = size
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0
        self._batch: dict[int, Sequence[bytes]] = {}
        self._tokens = 0

    def add(self, number: int, tokens: Sequence[bytes]) -> None:
        """Add the set of a sequence. Raises ``UserError`` if the device is full, ``ValueError`` for an empty one."""
        self._batch[number] = tokens
        self._tokens += len(tokens)
        if self._tokens >= BATCH_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Write what was added; to be called before sets are compared. Raises as ``add``."""
        hashes, offsets = shingles(list(self._batch.values()), self._size)
        try:
            for number, start, end in zip(self._batch, offsets[:-1], offsets[1:], strict=True):
                data = np.unique(hashes[start:end]).tobytes()
                self._places[number] = (self._end, len(data))
                self._end += self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"{tempfile.gettempdir()}: {error.strerror} while sets of shingles are compared there\n"
                "free some space, or set TMPDIR to a folder on another device",
                ErrorCode.NO_SPACE,
            ) from error
        self._batch, self._tokens = {}, 0

    def __contains__(self, number: object) -> bool:
        return number in self._places

    def jaccard(self, first: int, second: int) -> float:
        """The similarity of two sets that were written."""
        return jaccard(self._get(first), self._get(second))

    def close(self) -> None:
        """Remove the file."""
        # What could not be written would be tried again.
        with contextlib.suppress(OSError):
            self._file.close()

    def _get(self, number: int) -> Hashes:
        start, length = self._places[number]
        return np.frombuffer(os.pread(self._file.fileno(), length, start), dtype=np.uint64)


def similarities(
    pairs: Iterable[tuple[int, int]], signatures: Signatures, sets: ShingleFile
) -> dict[tuple[int, int], float]:
    """The similarity of each pair: of the sets where both are known, else estimated."""
    known = list(pairs)
    first, second = np.array(known, dtype=np.int64).reshape(-1, 2).T
    found = dict(zip(known, estimates(signatures, first, second).tolist(), strict=True))
    return found | {pair: sets.jaccard(*pair) for pair in known if pair[0] in sets and pair[1] in sets}


def _found(near: float, rows: int) -> float:
    return candidate_probability(near, PERMUTATIONS // rows, rows)


def _mix(values: Hashes) -> Hashes:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
