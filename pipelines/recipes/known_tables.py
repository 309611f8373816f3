"""The tables that a step of a recipe may name: the newest of a name, those of rounds, and those made elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agentmill.pipelines.operators.annotations import families_in, names_in
from agentmill.pipelines.recipes.grammar import ALL, PREVIOUS, named_steps, one_of
from agentmill.pipelines.recipes.step import Output
from agentmill.pipelines.sources.hub import pinned
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.tables import Table

OF_ROUNDS = (f"@{ALL}", f"@{PREVIOUS}")
"""The ends of names that may mean several tables, or none."""


class KnownTables:
    """The tables by name, as far as the steps were read; ``NAME@2`` is that of round 2."""

    def __init__(self, outputs: Mapping[str, Output]) -> None:
        self._outputs = dict(outputs)
        self._in_the_loop: set[str] = set()
        self._certain = 0

    def add(self, outputs: Iterable[Output], round_: int) -> None:
        """A step makes these tables, in a round or outside of one (0)."""
        for each in outputs:
            self._outputs[each.name] = each
            if round_:
                of_round = f"{each.name}@{round_}"
                certain = round_ <= self._certain
                self._outputs[of_round] = msgspec.structs.replace(each, name=of_round, certain=certain)

    def enter_loop(self, steps: list[dict[str, Any]], certain: int) -> None:
        """A loop begins, of which so many rounds are ``certain``.

        Tables of an earlier one with a name that it makes, too, are called by their newest only.
        """
        self._certain = certain
        self._in_the_loop = {name for _, name in named_steps(steps)}
        self._outputs = {
            name: made
            for name, made in self._outputs.items()
            if "@" not in name or name.partition("@")[0].partition("/")[0] not in self._in_the_loop
        }

    def leave_loop(self) -> None:
        """The loop ends."""
        self._in_the_loop = set()

    def copied(self) -> dict[str, Output]:
        """All tables, to come back to with ``restore``."""
        return dict(self._outputs)

    def restore(self, outputs: Mapping[str, Output]) -> None:
        """Know what was known before."""
        self._outputs = dict(outputs)

    def made_in(self, route: str, before: Mapping[str, Output]) -> dict[str, Output]:
        """The tables that a route has made since ``before``, by the names they have after the fork."""
        # By identity: a route may make anew what was there by the same name.
        return {f"{route}/{name}": made for name, made in self._outputs.items() if made is not before.get(name)}

    def of_role(self, role: str, names: Sequence[str], where: str, round_: int) -> list[Output]:
        """What the names of a role refer to. Raises ``UserError`` for one that is not known, and if there is none."""
        found = [output for name in names for output in self.named(name, where, round_)]
        if not found:
            raise UserError(
                f"{where}: `{role}: {', '.join(names)}` is no table in round {round_}, which has none before it\n"
                f"name another table with it, for example {role}: [seeds, {names[0]}]",
                ErrorCode.UNKNOWN_NAME,
            )
        return found

    def named(self, name: str, where: str, round_: int) -> list[Output]:
        """What a name refers to: the newest output of that name, an entry of ``data``, or outputs of some rounds."""
        base, at, version = name.partition("@")
        rounds = self._rounds_of(base)
        if not at:
            return [self._outputs[one_of(base, self._whole(), "table", where)]]
        # A table at the side of another, as ``explored/nodes``, is made with that.
        if not rounds and base.partition("/")[0] not in self._in_the_loop:
            one_of(base, self._whole(), "table", where)
            raise UserError(
                f"{where}: {name!r} names a round, and no iterate makes {base!r}; write {base}",
                ErrorCode.UNKNOWN_NAME,
            )
        if version == ALL:
            return list(rounds.values())
        if version == PREVIOUS and round_:
            return [rounds[round_ - 1]] if round_ - 1 in rounds else []
        known = [*map(str, rounds), ALL, *([PREVIOUS] if round_ else [])]
        numbered = re.fullmatch(r"(?:round-)?0*(\d+)", version)
        found = rounds[int(one_of(numbered[1] if numbered else version, known, f"round of {base!r}", where))]
        if not found.certain:
            raise may_be_missing(name, where, f"{base} for the newest table, or {base}@{ALL}")
        return [found]

    def _whole(self) -> list[str]:
        """The names of all tables, without those of rounds."""
        return [name for name in self._outputs if "@" not in name]

    def _rounds_of(self, name: str) -> dict[int, Output]:
        """The outputs of that name by round."""
        start = f"{name}@"
        return {int(each.removeprefix(start)): made for each, made in self._outputs.items() if each.startswith(start)}


def may_be_missing(name: str, where: str, instead: str) -> UserError:
    """The error of a name of a round that may not be reached, with what to write ``instead``."""
    return UserError(
        f"{where}: {name!r} may not be there, since `until` may end the loop before that round\nwrite {instead}",
        ErrorCode.UNKNOWN_NAME,
    )


def external(name: str, path: str, revisions: dict[str, str]) -> Output:
    """A table of ``data``. Raises ``UserError`` if there is none at ``path``, a folder or an address on the Hub.

    ``revisions`` as for ``Operator.pinned``.
    """
    try:
        table = Table.open(pinned(path, revisions))
        record = table.record_type.__name__
        return Output(name, table.folder, record, names_in(table), families_in(table))
    except UserError as error:
        raise UserError(f"data.{name}: {error}", error.code) from error
