"""Licences of sources, and under which licence what is made of them may be published.

A licence lays obligations on whoever passes a work on. What is declared must carry every obligation of every source, so
that nobody downstream learns less than the source demands; a source whose licence is not known, or whose terms are not,
is in the way until the publisher says what they are. The licences are those that data sets of agents come under, by
their ids on the Hub (SPDX ids in lower case). This is a net against oversights and no legal advice.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import polars as pl
import pyarrow.parquet as pq

from agentmill.pipelines.publish.bundle import Bundle
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import digest
from agentmill.schemas.tables import Table
from agentmill.synthesis.generators.inspirations import built_in

ATTRIBUTION, NON_COMMERCIAL, NO_DERIVATIVES = "attribution", "non-commercial", "no-derivatives"
OTHER = "other"
"""The Hub's word for terms that are in the card or in LICENSE: the publisher's own, but of a source unknown ones."""
SPEC_ENV = "spec_env"
"""The operator that makes environments of texts, ours or those of a file."""
NORMALIZE = "normalize"
"""The operator that reads foreign data sets; its manifest tells which one, whether a row of it was kept or not."""

OBLIGATIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("cc0-1.0", "unlicense", "pddl", "0bsd", "wtfpl"), frozenset()),
    **dict.fromkeys(
        ("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "bsl-1.0", "ecl-2.0"),
        frozenset({ATTRIBUTION}),
    ),
    **dict.fromkeys(
        ("cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "odc-by", "cdla-permissive-1.0", "cdla-permissive-2.0",
         "afl-3.0"),
        frozenset({ATTRIBUTION}),
    ),
    **{
        name: frozenset({ATTRIBUTION, f"share alike under {name}"})
        for name in ("cc-by-sa-3.0", "cc-by-sa-4.0", "cdla-sharing-1.0", "odbl", "gpl-2.0", "gpl-3.0", "agpl-3.0",
                     "lgpl-2.1", "lgpl-3.0", "mpl-2.0", "epl-2.0", "ms-pl", "gfdl")
    },
    **dict.fromkeys(("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0"), frozenset({ATTRIBUTION, NON_COMMERCIAL})),
    **{
        name: frozenset({ATTRIBUTION, NON_COMMERCIAL, f"share alike under {name}"})
        for name in ("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0")
    },
    **dict.fromkeys(("cc-by-nd-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0"), frozenset({ATTRIBUTION, NO_DERIVATIVES})),
    **{
        name: frozenset({ATTRIBUTION, f"the terms of {name}"})
        for name in ("llama2", "llama3", "llama3.1", "llama3.2", "llama3.3", "llama4", "gemma", "openrail",
                     "bigcode-openrail-m", "bigscience-openrail-m", "creativeml-openrail-m")
    },
    OTHER: frozenset({ATTRIBUTION}),
}  # fmt: skip
"""What the licences oblige to, by id."""

SPDX: Mapping[str, str] = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "gfdl-1.3": "gfdl"}
"""SPDX ids that the Hub spells otherwise, apart from those of GNU licences, which end with what versions they allow."""


class SourceCount(msgspec.Struct, frozen=True):
    """How many trajectories come from a data set, by its licence and by what read it; ``None``: not known.

    Where ``about`` says something, ``dataset`` is a table that was made from that, and no trajectories are counted.
    ``stated``: the publisher named the licence.
    """

    dataset: str
    licence: str | None
    split: str | None = None
    converter: str | None = None
    trajectories: int = 0
    about: str = ""
    stated: bool = False


def sources_of(bundle: Bundle) -> list[SourceCount]:
    """What the material comes from: foreign data sets, texts that are not ours, inputs that cannot be looked at."""
    missing = [
        SourceCount(table, None, about=f"inputs that are not here: {', '.join(sorted(names))}")
        for table, names in bundle.unknown.items()
    ]
    return sorted([*foreign(bundle.origins), *inspired(bundle.origins), *missing], key=repr)


def foreign(tables: Sequence[Table]) -> list[SourceCount]:
    """The foreign data sets that the trajectories of ``tables`` come from, and the records that were dropped."""
    columns = ["dataset", "licence", "split", "converter", "converter_version"]
    found: Counter[tuple[str | None, ...]] = Counter()
    for table in tables:
        if table.manifest.record == "Trajectory":
            for shard in table.shards():
                frame = pl.from_arrow(pq.ParquetFile(shard).read(columns=[f"source.{name}" for name in columns]))
                assert isinstance(frame, pl.DataFrame)
                rows = frame.drop_nulls("source").unnest("source").drop_nulls("dataset")
                found.update({tuple(row[:-1]): row[-1] for row in rows.group_by(columns).len().iter_rows()})
    kept = [
        SourceCount(str(dataset), licence, split, f"{converter} {version}", n)
        for (dataset, licence, split, converter, version), n in found.items()
    ]
    there = {(each.dataset, each.licence, each.split) for each in kept}
    return kept + [each for each in read_by(tables) if (each.dataset, each.licence, each.split) not in there]


def read_by(tables: Iterable[Table]) -> list[SourceCount]:
    """The foreign data sets that ``tables`` were read from, by their manifests: dropped records are published, too."""
    found = set()
    for manifest in (table.manifest for table in tables if table.manifest.operator == NORMALIZE):
        value_of = manifest.config.get
        found.add(
            SourceCount(
                value_of("dataset") or manifest.table, value_of("licence"), value_of("split"), value_of("format")
            )
        )
    return [*found]


def inspired(tables: Iterable[Table]) -> Iterator[SourceCount]:
    """The tables of environments that were made of texts which are not ours."""
    ids = [each.inspiration_id for each in built_in()]
    # A step takes the first of our texts, as many as it needs; its manifest has only the digest of their ids.
    ours = {digest(ids[:n]) for n in range(1, len(ids) + 1)}
    for table in tables:
        if table.manifest.operator == SPEC_ENV and table.manifest.config.get("seeds") not in ours:
            yield SourceCount(table.manifest.table, None, about="the texts of its `inspiration`")


def with_stated(sources: Sequence[SourceCount], stated: Mapping[str, str]) -> list[SourceCount]:
    """``sources`` with the licences that were ``stated`` by source, where these tell none that is known here.

    Raises ``UserError`` for what is no source, and for one that tells a licence itself.
    """
    names = {each.dataset for each in sources}
    for name in stated:
        if name not in names:
            there = f"they are {', '.join(sorted(names))}.{near_match(name, names)}" if names else "there are none"
            raise UserError(f"--source-licence {name}: it is none of the sources; {there}", ErrorCode.UNKNOWN_NAME)
    return [answered(each, stated[each.dataset]) if each.dataset in stated else each for each in sources]


def answered(source: SourceCount, stated: str) -> SourceCount:
    """``source`` with the licence that was ``stated``. Raises ``UserError`` if it tells another one itself."""
    own = terms_of(source)
    if own is None:
        return msgspec.structs.replace(source, licence=stated, stated=True)
    if own != stated:
        raise UserError(
            f"--source-licence {source.dataset}={stated}: its rows say {source.licence}; if that is wrong, "
            "read it again with the right `licence` (normalize)",
            ErrorCode.LICENCE_DIFFERS,
        )
    return source


def hub_id(licence: str) -> str:
    """A licence as the Hub spells it."""
    name = licence.strip().lower().removesuffix("-only").removesuffix("-or-later")
    return SPDX.get(name, name)


def known(licence: str) -> str:
    """The id of a licence. Raises ``UserError`` for one that is not known here."""
    name = hub_id(licence)
    if name not in OBLIGATIONS:
        near = near_match(name, OBLIGATIONS)
        raise UserError(
            f"unknown licence {licence!r}; expected one of {', '.join(OBLIGATIONS)}.{near}", ErrorCode.UNKNOWN_NAME
        )
    return name


def terms_of(source: SourceCount) -> str | None:
    """The id of the licence of a source; ``None`` where its terms are not known."""
    name = hub_id(source.licence or OTHER)
    return name if name in OBLIGATIONS and name != OTHER else None


def declared_or_common(declared: str | None, sources: Sequence[SourceCount]) -> str:
    """The licence to publish under: the ``declared`` one, or that of all sources. Raises ``UserError``."""
    if declared is not None:
        return known(declared)
    held = {terms_of(each) for each in sources}
    if len(held) == 1 and (one := held.pop()) is not None:
        return one
    why = "not all sources tell a known one" if None in held else "its sources have several"
    why = why if sources else "its licence is not known"
    raise UserError(
        f"a licence is missing ({why}); declare one with --licence, for example --licence apache-2.0",
        ErrorCode.LICENCE_MISSING,
    )


def conflicts(declared: str, sources: Iterable[SourceCount]) -> list[str]:
    """Why ``sources`` may not be published under ``declared``, one line for each source in the way."""
    lines = {conflict(declared, each): None for each in sources}
    return [line for line in lines if line]


def conflict(declared: str, source: SourceCount) -> str:
    """Why a source may not be published under ``declared``; empty if it may."""
    name = f"{source.dataset} ({source.about})" if source.about else source.dataset
    own = terms_of(source)
    if own is None:
        licence_text = f"{name} is under {source.licence}, whose terms are not known here" if source.licence else ""
        way = f"say which it is with --source-licence {shlex.quote(source.dataset)}=LICENCE"
        return f"{licence_text or f'{name} has no licence'}; {way}"
    demanded = OBLIGATIONS[own]
    if NO_DERIVATIVES in demanded:
        return f"{name} is under {source.licence}, which lets no work that is made of it be published"
    missing = ", ".join(sorted(demanded - OBLIGATIONS[declared]))
    return f"{name} is under {source.licence}: {missing}, which {declared} does not keep" if missing else ""
