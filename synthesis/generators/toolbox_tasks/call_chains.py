"""Chains of calls as tasks: a walk over the tools is executed, in which each call finds a key that a later one takes.

After GOAT (arXiv:2510.12218). Walks are those of ``generator``; what is no chain is cut after its longest
beginning that is one. A chain changes something, or only reads.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.environments.toolbox.toolbox import Parameter, Toolbox, Value
from agentmill.synthesis.generators.generator import TOO_FEW, GenerationError, different_tasks
from agentmill.synthesis.generators.toolbox_tasks.generator import (
    MAX_OPERATIONS,
    Plan,
    calls_of,
    draw_operations,
    make_task,
)
from agentmill.synthesis.generators.toolbox_tasks.live_toolbox import Call, LiveToolbox, plain, read_toolbox
from agentmill.synthesis.generators.toolbox_tasks.operation import Operation

OPERATOR = "call_first"
TRIES = 24
"""Walks that are drawn for one task. Many are no chain of the wanted kind."""


class CallChains:
    """Makes tasks whose solutions are chains of ``length`` = (least, most) calls, ``finish`` not among them."""

    def __init__(self, length: tuple[int, int]) -> None:
        self._least, self._most = length

    def proposals(self, spec: EnvironmentSpec, n: int, changing: float, seed: int) -> Iterator[Task | GenerationError]:
        """``n`` tasks or failures, no two tasks of the same structure; a share ``changing`` of them changes something.

        One failure for a spec that cannot be used.
        """
        try:
            live = read_toolbox(spec)
        except EnvError as error:
            yield GenerationError("broken_environment", str(error))
            return
        seed = derive_seed(OPERATOR, spec.environment_id, seed)
        first = round(n * changing)
        kinds = [True] * first + [False] * (n - first)
        # Splits go by the number of a task, and must not depend on its kind.
        random.Random(seed).shuffle(kinds)
        seen: set[str | None] = set()
        made: Counter[bool] = Counter()
        with closing(live):
            chains = {kind: self._chains(live, kind, kinds.count(kind), seed, seen) for kind in (True, False)}
            for kind in kinds:
                each = next(chains[kind])
                made[kind] += isinstance(each, Task)
                few = isinstance(each, GenerationError) and each.reason == TOO_FEW
                yield self._too_few(kind, made[kind], kinds.count(kind)) if few else each

    def _chains(
        self, live: LiveToolbox, changing: bool, n: int, seed: int, seen: set[str | None]
    ) -> Iterator[Task | GenerationError]:
        def chain(number: int) -> Task | GenerationError:
            return self._chain(live, changing, derive_seed(seed, changing, number), seen)

        return different_tasks(chain, n, "a chain of calls", TRIES)

    def _too_few(self, changing: bool, made: int, wanted: int) -> GenerationError:
        kind = "change something" if changing else "only read"
        return GenerationError(
            TOO_FEW,
            f"the environment has {made or 'no'} different chains of {self._least} to {self._most} calls that {kind},"
            f" and {wanted} are wanted; lower n, or change length or changing",
        )

    def _chain(self, live: LiveToolbox, changing: bool, seed: int, seen: set[str | None]) -> Task | GenerationError:
        for attempt in range(TRIES):
            draw = derive_seed(seed, attempt)
            wanted = random.Random(draw).randint(self._least, self._most)
            # One more than calls: the solution ends with ``finish``.
            drawn = draw_operations(live, Plan(draw, MAX_OPERATIONS), wanted + 1)
            number = next((n for n in range(len(drawn), 0, -1) if self._fits(live, drawn[:n], changing)), 0)
            if not number:
                continue
            # Drawn anew, so that the rows are as the last call of the chain left them.
            operations = drawn if number == len(drawn) else draw_operations(live, Plan(draw, number))
            lineage = Lineage(operator=OPERATOR, seed=seed, notes={"plan": plain(Plan(draw, number))})
            task = make_task(live, operations, digest(OPERATOR, live.spec.environment_id, seed), lineage)
            if task is not None and task.structure_digest not in seen:
                seen.add(task.structure_digest)
                return task
        return GenerationError("no_new_task", f"no new chain of calls in {TRIES} tries")

    def _fits(self, live: LiveToolbox, operations: Sequence[Operation], changing: bool) -> bool:
        calls = calls_of(operations)
        given = {slot.text for each in operations for slot in each.phrase.slots.values()}
        return (
            self._least <= len(calls) <= self._most
            and any(call.tool.writes for call in calls) == changing
            and is_chain(live.toolbox, calls, given)
        )


def is_chain(toolbox: Toolbox, calls: Sequence[Call], given: set[str]) -> bool:
    """Whether each call but the last shows a key that a later one takes, and that is not among the texts ``given``."""
    return all(
        any(_feeds(toolbox, call, later, given) for later in calls[place + 1 :])
        for place, call in enumerate(calls[:-1])
    )


def _feeds(toolbox: Toolbox, call: Call, later: Call, given: set[str]) -> bool:
    return any(
        shows_key(toolbox, call, parameter, later.arguments[parameter.name])
        for parameter in later.tool.parameters
        if str(later.arguments[parameter.name]) not in given
    )


def shows_key(toolbox: Toolbox, call: Call, parameter: Parameter, value: Value) -> bool:
    """Whether ``parameter`` takes the key of a row, and ``call`` showed ``value`` as a key of that table."""
    owner = toolbox.keyed(parameter.column)
    if owner is None:
        return False
    names = [name for name, path in call.tool.columns.items() if path and toolbox.keyed(path) == owner]
    return any(row[name] == value for row in call.rows for name in names)
