"""Search trees for tests: runs by the commands of their turns."""

from __future__ import annotations

from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.trajectory import OutcomeStatus, Trajectory
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.tree_view import FamilyView, Made, Relative
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, instruction, outcome, seen, trajectory


def run(
    name: str, *commands: str, good: bool = False, copied: int = 0, status: OutcomeStatus | None = None
) -> Trajectory:
    """A run whose first ``copied`` turns are its parent's; the world answers each command with its upper case."""
    content = [instruction("Go.")]
    for turn, command in enumerate(commands, 1):
        operation = "copied" if turn <= copied else None
        content += [
            agent_message(command, turn, context_operation=operation),
            seen(command.upper(), turn, context_operation=operation),
        ]
    status = status or ("success" if good else "failure")
    return trajectory(name, content=content, system_prompt=None, outcome=outcome(status))


def made(view: FamilyView, *runs: Trajectory, annotations: Annotations = NOTHING) -> Made:
    """What becomes of each run."""
    return view.make_rows([Relative(each, annotations) for each in runs])


def shown(row: SftRow) -> list[str]:
    """The messages in short: a star stands before those with loss."""
    return [f"*{message.content}" if message.train else str(message.content) for message in row.messages]


def reasons(found: Made) -> dict[str, str]:
    """Why runs are in no row."""
    return {name: each.reason for name, each in found.items() if isinstance(each, Unused)}


def row_of(found: Made) -> SftRow:
    """The only row."""
    (row,) = [row for each in found.values() if not isinstance(each, Unused) for row in each]
    return row
