"""How a trajectory is told as a conversation: from whose side, with which system prompt, in which tool format."""

from __future__ import annotations

import msgspec
from pydantic import Field

from schemas.config import Config
from schemas.ids import derive_seed
from schemas.trajectory import Trajectory
from schemas.views.roles import plays, seen_by
from schemas.views.toolformats import ToolFormat, written
from schemas.views.turns import Said, conversation, tools_text
from schemas.views.view import Unused


class Dialogue(Config):
    """Parameters of views that tell trajectories as conversations."""

    role: str | None = Field(
        default=None,
        description="the one agent, by its name or role, that is the assistant; all others are heard as users. "
        "null: whoever acts is the assistant",
    )
    tool_format: ToolFormat = Field(
        default="native",
        description="how tools, calls and results are written: by the chat template (native), or as text by us",
    )
    system_prompts: list[str] = Field(
        default=[],
        description="system prompts to replace that of the run, one per trajectory, chosen by its id; "
        "{system_prompt} in them stands for it",
    )

    def told(self, trajectory: Trajectory) -> list[Said]:
        """The conversation, none of it marked for training. Raises ``Unused`` if ``role`` never acts."""
        content = trajectory.content
        if self.role is not None:
            if not any(plays(item, self.role) for item in content):
                raise Unused("no_role", f"no agent or role {self.role!r} acts")
            content = seen_by(self.role, content)
        seen = msgspec.structs.replace(trajectory, content=content, system_prompt=self._system_prompt(trajectory))
        told = conversation(seen)
        if self.role is not None:  # what is asked for is no aside
            told = [msgspec.structs.replace(said, aside=False) for said in told]
        return written(told, trajectory.tools, self.tool_format)

    def tools_column(self, trajectory: Trajectory) -> str | None:
        """The tools as the row holds them; none where the conversation lists them itself."""
        return tools_text(trajectory) if self.tool_format == "native" else None

    def _system_prompt(self, trajectory: Trajectory) -> str | None:
        if not self.system_prompts:
            return trajectory.system_prompt
        number = derive_seed("system_prompt", trajectory.trajectory_id) % len(self.system_prompts)
        return self.system_prompts[number].replace("{system_prompt}", trajectory.system_prompt or "")
