"""Telling the model whether what follows went well, so that failures can be learnt from without being imitated.

Negative-aware training (NAT, arXiv:2402.11651): good and bad runs get different instructions; at test time the model
is given that of the good ones.
"""

from __future__ import annotations

from pydantic import Field

from schemas.annotation_names import VerdictName
from schemas.config import Config
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence
from schemas.views.view import Unused


class Prefix(Config):
    """What is added to the system prompt of a run that succeeded, and of one that failed."""

    success: str = Field(description="added to the system prompt of a success")
    failure: str = Field(description="added to the system prompt of a failure")
    verdict: VerdictName = Field(
        default="check_outcome", description="the verdict that tells; without it, the outcome of the run"
    )

    def text(self, trajectory: Trajectory, evidence: Evidence) -> str:
        """What is added. Raises ``Unused`` if neither verdict nor outcome tell."""
        verdict = evidence.verdict(self.verdict)
        passed = verdict.passed if verdict is not None else None
        if passed is None:
            passed = {"success": True, "failure": False}.get(trajectory.outcome.status)
        if passed is None:
            raise Unused("unscored", f"neither verdict {self.verdict!r} nor the outcome tell how it went")
        return self.success if passed else self.failure
