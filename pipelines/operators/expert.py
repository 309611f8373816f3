"""``expert``: demonstrations by a policy that knows the way."""

from __future__ import annotations

from pydantic import Field

from agentmill.pipelines.operators.sample import Sample


class Expert(Sample):
    """Demonstrations by a planner, an oracle or a gold replay: the same episodes as those of sample."""

    policy: str = Field(default="expert", description="an entry of models whose policy is an expert")

    @classmethod
    def operator(cls) -> str:
        """The name that dead letters carry."""
        return "expert"
