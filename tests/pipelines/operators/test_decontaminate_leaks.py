"""``decontaminate`` on synthesized tasks with planted leaks (at length: ``benchmarks/bench_decontaminate.py``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentmill.pipelines.leak_features import LEAST_VALUES
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, TextObservation, Trajectory
from tests.pipelines.engine.stages import rows_of, write_table
from tests.pipelines.operators.steps import model, run

NAMES = ("Quillon", "Vandery", "Mosswick", "Tarnhelm", "Ostrava", "Brindle", "Keswyn", "Halloran", "Pemberly", "Zorah")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toolboxes, their tasks and the trajectories that solve them."""
    folder = tmp_path_factory.mktemp("toolbox")
    run(folder, "spec_env", "specs", family="toolbox", backend="procedural", n=12, seed=3)
    run(folder, "propose", "tasks", of="specs", n=6, plan_length=[3, 8], seed=3)
    expert = {"tasks": "tasks", "environments": "specs", "policy": "gold", "scaffold": "tools"}
    run(folder, "expert", "solved", {"actor": model()}, **expert)
    return folder


def arguments(trajectory: Trajectory) -> int:
    """How many arguments the calls have; an empty text is none."""
    calls = [item.kwargs for item in trajectory.content if isinstance(item, ApiAction)]
    return sum(value != "" for kwargs in calls for value in kwargs.values())


def with_texts(trajectory: Trajectory, text: Callable[[str], str]) -> Trajectory:
    """A trajectory in which every text is changed, those of calls, too."""

    def value(given: Any) -> Any:
        return text(given) if isinstance(given, str) else given

    content: list[Any] = [
        msgspec.structs.replace(item, kwargs={name: value(each) for name, each in item.kwargs.items()})
        if isinstance(item, ApiAction)
        else msgspec.structs.replace(item, content=text(item.content))  # type: ignore[call-arg, union-attr]
        for item in trajectory.content
    ]
    return msgspec.structs.replace(trajectory, content=content)


def paraphrased(trajectory: Trajectory) -> Trajectory:
    """A trajectory whose instruction has its words in another order, and others between them."""

    def changed(item: Any) -> Any:
        asked = isinstance(item, TextObservation) and item.source == "user"
        return msgspec.structs.replace(item, content=" and so ".join(item.content.split()[::-1])) if asked else item

    return msgspec.structs.replace(trajectory, content=[changed(item) for item in trajectory.content])


def renamed(trajectory: Trajectory) -> Trajectory:
    """A trajectory in which every title and name that its calls have is another."""
    values = [value for item in trajectory.content if isinstance(item, ApiAction) for value in item.kwargs.values()]
    named = sorted({value for value in values if isinstance(value, str) and value[:1].isupper()})
    into = dict(zip(named, NAMES, strict=False))
    pattern = re.compile("|".join([*map(re.escape, sorted(into, key=len, reverse=True)), "(?!)"]))
    return with_texts(trajectory, lambda text: pattern.sub(lambda found: into[found[0]], text))


@pytest.mark.parametrize(
    ("kind", "change", "bar"),
    [("verbatim", lambda each: each, 1.0), ("paraphrased", paraphrased, 0.95), ("renamed", renamed, 0.9)],
)
def test_planted_leaks(
    kind: str, change: Callable[[Trajectory], Trajectory], bar: float, made: Path, tmp_path: Path
) -> None:
    solved: list[Trajectory] = rows_of(made / "solved")
    held = set(sorted({str(each.environment_id) for each in solved})[:3])
    # A solution with fewer arguments is equal by chance.
    bench = [each for each in solved if each.environment_id in held and arguments(each) >= LEAST_VALUES]
    data = [each for each in solved if each.environment_id not in held]
    leaks = [
        msgspec.structs.replace(change(each), trajectory_id=f"leak{number}", task_id=f"leak{number}")
        for number, each in enumerate(bench)
    ]
    write_table(tmp_path / "runs", [data, leaks], Trajectory)
    write_table(tmp_path / "bench", [[each for each in rows_of(made / "tasks") if each.environment_id in held]], Task)
    run(tmp_path, "decontaminate", "clean", of="runs", against="bench")
    out = {row.trajectory_id for row in rows_of(tmp_path / "clean") if not row.kept}
    assert len(out & {each.trajectory_id for each in leaks}) >= bar * len(leaks)
    assert len(out - {each.trajectory_id for each in leaks}) <= 0.01 * len(data)
    assert len(bench) >= 15
