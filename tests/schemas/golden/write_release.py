"""Writes the golden files of the schema version at hand: ``python tests/schemas/golden/write_release.py``.

To be run once per released version, with the release; the files of earlier releases stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from agentmill.schemas.records.record import SCHEMA_VERSION
from agentmill.schemas.tables import RECORDS, write_shard
from tests.schemas.examples import example
from tests.schemas.test_arrow_versions import GOLDEN, arrow_schemas


def main() -> None:
    folder = GOLDEN / f"release-{SCHEMA_VERSION}"
    for name, record_type in RECORDS.items():
        record = example(record_type)
        write_shard(folder / f"{name}.parquet", [record], record_type)
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(record) + b"\n")
    (GOLDEN / "arrow_schemas.txt").write_text(arrow_schemas())
    (GOLDEN / ".tmp").rmdir()


if __name__ == "__main__":
    main()
