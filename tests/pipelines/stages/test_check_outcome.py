"""``check_outcome`` as a stage: worlds that block are replayed in threads; one that hangs costs one verdict."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipelines.stages import check_outcome
from schemas.errors import UserError
from schemas.tables import Counts
from schemas.task import EnvironmentSpec, Task
from synthesis.environments import ENVIRONMENTS
from synthesis.strategies import apart
from tests.pipelines.engine.stages import dropped_of, rows_of, write_table
from tests.pipelines.stages.steps import model, run
from tests.ruin_world import SPEC, RuinWorld, registered, ruin_task

ON = {"tasks": "tasks", "environments": "environments"}


class Stuck(RuinWorld):
    """Hangs at every step from 3; notes who calls it."""

    blocking: ClassVar[bool] = True
    released: ClassVar[threading.Event] = threading.Event()
    callers: ClassVar[set[str]] = set()

    def step(self, action: Any) -> Any:
        self.callers.add(threading.current_thread().name)
        if self.number == 3:
            self.released.wait(60)
        return super().step(action)


class Dead(RuinWorld):
    """Hangs at every step until it is released."""

    blocking: ClassVar[bool] = True
    released: ClassVar[threading.Event] = threading.Event()

    def step(self, action: Any) -> Any:
        self.released.wait(60)
        return super().step(action)


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Path]:
    """Runs that go left from 1, 2, 3 and 4 until they lose."""
    write_table(tmp_path / "tasks", [[ruin_task(start, 5) for start in (1, 2, 3, 4)]], Task)
    write_table(tmp_path / "environments", [[SPEC]], EnvironmentSpec)
    with registered():
        actor = {"actor": model("gambler", turns=["0.0"])}
        run(tmp_path, "sample", "lost", actor, policy="p", **ON)
        yield tmp_path


def test_a_world_that_hangs_in_a_replay_costs_its_verdict_and_no_other(
    lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "POOL", apart.Pool(8))
    monkeypatch.setattr(check_outcome, "CALL_TIMEOUT_S", 0.5)
    monkeypatch.setitem(ENVIRONMENTS._entries, "ruin", f"{__name__}:Stuck")
    threading.Timer(4.0, Stuck.released.set).start()
    manifest = run(lost, "check_outcome", "verdicts", of="lost", **ON)
    assert manifest.counts == Counts(read=4, used=2, dropped=2, written=2)
    assert manifest.reasons == {"world_timeout": 2}
    assert {letter.blamed for letter in dropped_of(lost / "verdicts")} == {"environment"}
    assert {(verdict.status, verdict.passed) for verdict in rows_of(lost / "verdicts")} == {("scored", False)}
    assert Stuck.callers == {"world"}


def test_worlds_that_all_hang_end_the_stage(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "POOL", apart.Pool(8))
    monkeypatch.setattr(apart, "CLOSING_S", 0.1)
    monkeypatch.setattr(check_outcome, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(check_outcome, "HUNG_IN_A_ROW", 3)
    monkeypatch.setitem(ENVIRONMENTS._entries, "ruin", f"{__name__}:Dead")
    with pytest.raises(UserError, match=r"3 replays one after the other did not come back \(timeout: the environment"):
        run(lost, "check_outcome", "verdicts", of="lost", **ON)
    Dead.released.set()
    assert run(lost, "check_outcome", "verdicts", of="lost", **ON).counts.written == 4
