"""What happens when the context of an episode gets too long.

* ``stop``: the episode ends truncated (``context_overflow``).
* ``sliding_window``: the oldest turns are left out, the instruction stays.
* ``fold``: the oldest turns are replaced by a summary that a model writes, after AgentFold (arXiv:2510.24699).
* ``notes``: the agent never sees more than its last turns, and with them notes that a model writes anew whenever a
  turn leaves its sight, which is given the task and all that is still seen (MEM1, arXiv:2506.15841; BrowserAgent,
  arXiv:2510.10666).

What is left out stays in the trajectory; a mark says from where on it was not shown (``agentmill.schemas.chat``). The
next prompt is then no extension of the one before, so its tokens start a new segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from agentmill.schemas.chat import is_mark, shown
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import AnyItem, TextObservation, Usage

ContextPolicyName = Literal["stop", "sliding_window", "fold", "notes"]
Summarizer = Callable[[Sequence[AnyItem]], Awaitable[tuple[str, Usage]]]
"""A short summary of some items, and its cost."""


class ContextPolicy(Record):
    """What is done about it. The last ``keep_turns`` turns stay.

    A context is too long when the model refuses it, or after a turn whose prompt and answer had more than
    ``max_tokens`` tokens; for ``notes`` also when it holds more than ``keep_turns`` turns.
    """

    context: ContextPolicyName = "stop"
    keep_turns: int = 4
    max_tokens: int | None = None

    def due(self, tokens: int) -> bool:
        """Whether a context of ``tokens`` is to be shortened before the next turn, if it holds more than may stay."""
        return self.context == "notes" or (self.max_tokens is not None and tokens > self.max_tokens)

    async def shortened(
        self, content: Sequence[AnyItem], keep: int, summarizer: Summarizer | None
    ) -> tuple[TextObservation | None, Usage]:
        """The mark for all but the last ``keep`` turns, and its cost; none if it would leave out nothing."""
        seen = shown(content)
        turns = sorted({item.turn for item in seen} - {0})
        left_out = turns[: max(0, len(turns) - keep)]
        if self.context == "stop" or not left_out:
            return None, Usage()
        last = left_out[-1]
        if self.context == "sliding_window":
            text = f"(Turns 1 to {last} are left out here.)"
            return TextObservation(content=text, source="agent", turn=last, context_operation="condense"), Usage()
        if summarizer is None:
            raise ValueError(f"`context: {self.context}` needs a summarizer")
        noting = self.context == "notes"
        to_summarize = [item for item in seen if noting or (item.turn <= last and (item.turn > 0 or is_mark(item)))]
        summary, usage = await summarizer(to_summarize)
        words = "are left out here; your notes" if noting else "in short"
        mark = TextObservation(
            content=f"(Turns 1 to {last} {words}: {summary})",
            source="agent",
            role="notes" if noting else "summarizer",
            turn=last,
            synthetic=True,
            context_operation="fold",
        )
        return mark, usage
