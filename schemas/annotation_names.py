"""Parameters that ask for annotations by name, so that a plan can see whether anything writes what they ask for."""

from __future__ import annotations

from typing import Annotated

import msgspec


class Asks(msgspec.Struct, frozen=True):
    """Marks a parameter whose text names an annotation of ``kind``; ``criterion``: a score, which may name one."""

    kind: str


CRITERION = Asks("criterion")
VerdictName = Annotated[str, Asks("verdict")]
LabelName = Annotated[str, Asks("label")]
