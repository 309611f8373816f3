"""The contract of a verifier: its parameters, and what it writes about one trajectory.

It writes one verdict on the whole, called by the ``name`` of the step. It may add verdicts on what it checks apart,
called ``NAME/PART``, verdicts on single items, and labels. Every one of them says how it came about: ``judge`` and
``labeller`` who decided, ``evidence`` what was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.config import Config
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.synthesis.environments.environment import Environment

PartId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", description="what it is called: the verdict is NAME/ID")]

Need = Literal["tasks", "environments"]
Finding = Verdict | Label


if TYPE_CHECKING:
    from agentmill.synthesis.verifiers.judging import Panel


class VerifierError(Exception):
    """A verifier broke its contract; the trajectory is dropped, and ``reason`` says so."""

    reason = "bad_verdict"


class Finder(Protocol):
    """Whoever writes verdicts and labels: a verifier, or an operator that reads other trajectories as well."""

    writes_labels: ClassVar[bool]

    @property
    def name(self) -> str:
        """What its verdicts are called."""

    def parts(self) -> Sequence[str]:
        """What it has verdicts or labels on in addition to the whole, called ``NAME/PART``."""


class Findings(msgspec.Struct, frozen=True):
    """All that a verifier says of one trajectory; the first verdict is that on the whole."""

    verdicts: list[Verdict]
    labels: list[Label]


class Verifier(Config):
    """A verifier's parameters are its fields; a recipe gives them in the step that runs it. Pickles to workers."""

    needs: ClassVar[Sequence[Need]] = ()
    """The tables it needs besides the trajectories; an environment cannot be made without its ``tasks``."""

    writes_labels: ClassVar[bool] = False
    """Whether it writes labels, too; they are the table ``NAME/labels``."""

    name: str
    """What its verdicts are called; two steps with the same verifier have to give different names."""

    def parts(self) -> Sequence[str]:
        """What it checks apart: each part has a verdict of its own, called ``NAME/PART``."""
        return ()

    def runs_code(self) -> bool:
        """Whether it runs code in the sandbox, which is then looked for before a run begins."""
        return False

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict | Sequence[Finding]:
        """The verdict on the whole, alone or among others.

        ``status`` is ``unscored`` where nothing is known, ``error`` where the verifier failed; there is no score then,
        and ``reason`` says why. ``task`` is None unless ``needs`` names ``tasks``; ``environment`` is None unless it
        names ``environments``, or where the environment of the task is unknown. It is not reset, and closed by the
        caller.
        """
        raise NotImplementedError

    def verdict(self, trajectory: Trajectory, judge: str, part: str | None = None) -> Verdict:
        """An unscored verdict to be filled in, on the whole or on one of the ``parts``."""
        name = self.name if part is None else f"{self.name}/{part}"
        return Verdict(trajectory_id=trajectory.trajectory_id, name=name, status="unscored", judge=judge)


class Part(msgspec.Struct, frozen=True):
    """What became of one thing that a verifier checks apart; ``met`` is None where it does not apply."""

    id: str
    met: bool | None
    weight: float = 1.0
    veto: bool = False


def check_ids(ids: Sequence[str], what: str) -> None:
    """Raises ``ValueError`` where two of the things that a verifier checks apart have one id; ``what`` they are."""
    twice = next((each for each in ids if ids.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"two {what} have the id {twice!r}; give one of them another")


def weighted(verdict: Verdict, parts: Sequence[Part], pass_at: float, **evidence: Any) -> Verdict:
    """The verdict on the whole: the weighted share of the parts that apply, which passes at ``pass_at``.

    It does not pass where a part with a veto is not met. Unscored (``not_applicable``) where no part applies.
    """
    applying = [part for part in parts if part.met is not None]
    if not applying:
        return msgspec.structs.replace(verdict, reason="not_applicable", evidence=evidence)
    score = sum(part.weight for part in applying if part.met) / sum(part.weight for part in applying)
    vetoed = [part.id for part in applying if part.veto and not part.met]
    found = {
        "kept": [part.id for part in applying if part.met],
        "violated": [part.id for part in applying if not part.met],
        **({"vetoed": vetoed} if vetoed else {}),
        **evidence,
    }
    passed = not vetoed and reaches(score, pass_at)
    return msgspec.structs.replace(verdict, status="scored", score=score, passed=passed, evidence=found)


def listed_at(task: Task | None, path: str) -> list[Any]:
    """What a task has at a dotted path, as a list; what is no list is one alone, and nothing none."""
    found: Any = task
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else getattr(found, key, None)
    return found if isinstance(found, list) else [] if found is None else [found]


class ModelVerifier(Verifier):
    """A verifier that asks models, which the step names as ``judges``; ``judge`` takes the place of ``verify``."""

    asks_scorer: ClassVar[bool] = False
    """Whether it asks one reward model, which the step names as ``scorer``, and no judges."""

    def asks_models(self) -> bool:
        """Whether it asks models at all, with these parameters."""
        return True

    def most_answers(self, turns: int | None, judges: int) -> int | None:
        """The most answers that one of so many ``judges`` gives on a trajectory of so many turns; ``None``: unknown."""
        del turns, judges
        return None

    def check_judge_count(self, count: int) -> None:
        """Raises ``UserError`` for parameters that have no effect with so many judges."""

    async def judge(self, task: Task | None, trajectory: Trajectory, panel: Panel) -> Verdict | Sequence[Finding]:
        """As ``verify``. Raises ``PolicyError`` where a judge cannot be asked; the trajectory is then dropped."""
        raise NotImplementedError


def findings(verifier: Finder, trajectory: Trajectory, given: Verdict | Sequence[Finding]) -> Findings:
    """What a verifier ``given`` back. Raises ``VerifierError`` where it breaks the contract."""
    every = [given] if isinstance(given, Verdict | Label) else list(given)
    wrong = next((fault for each in every for fault in _faults(verifier, trajectory, each)), None)
    verdicts = [each for each in every if isinstance(each, Verdict)]
    labels = [each for each in every if isinstance(each, Label)]
    keys = [(type(each), each.item, each.name) for each in every]
    if wrong is None and len(set(keys)) < len(keys):
        wrong = "two verdicts or labels have one name and item"
    whole = [each for each in verdicts if each.item is None and each.name == verifier.name]
    if wrong is None and not whole:
        wrong = f"there is no verdict {verifier.name!r} on the whole trajectory"
    if wrong is None and labels and not verifier.writes_labels:
        wrong = "it gives labels, and does not declare `writes_labels`"
    if wrong is not None:
        raise VerifierError(f"{type(verifier).__name__}: {wrong}")
    return Findings([*whole, *(each for each in verdicts if each is not whole[0])], labels)


def _faults(verifier: Finder, trajectory: Trajectory, finding: Finding) -> Iterator[str]:
    known = {verifier.name, *(f"{verifier.name}/{part}" for part in verifier.parts())}
    if finding.trajectory_id != trajectory.trajectory_id:
        yield f"{finding.name!r} is about another trajectory, {finding.trajectory_id!r}"
    if finding.name not in known:
        yield f"{finding.name!r} is none of its names: {', '.join(sorted(known))}"
    if finding.item is not None and not 0 <= finding.item < len(trajectory.content):
        yield f"{finding.name!r} is about item {finding.item} of {len(trajectory.content)}"
    if isinstance(finding, Verdict):
        yield from _verdict_faults(finding)


def _verdict_faults(verdict: Verdict) -> Iterator[str]:
    empty = verdict.score is None and verdict.passed is None
    if verdict.status == "scored" and empty:
        yield f"{verdict.name!r} is scored and has neither a score nor passed"
    if verdict.score is not None and not math.isfinite(verdict.score):
        yield f"{verdict.name!r} has the score {verdict.score}"
    if verdict.status != "scored" and not (empty and verdict.reason):
        yield f"{verdict.name!r} is {verdict.status}, so it has a reason and no score"
