"""Event logs of OpenHands (arXiv:2407.16741), of its old agents and of its SDK, alone or within a record of a run.

A result is linked to its call (``cause``, ``tool_call_id``), calls of one model response share a turn, errors and
rejections are results. Changes of state are no turns: they are in ``extra`` under ``events``. Of web pages the text
that the agent saw is kept; screenshots and page trees, megabytes each, are counted as losses. Personal fields of
feedback (``email``, ``token``) and keys of models are never stored.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, decode, present, provenance
from agentmill.schemas.formats.openhands.old_events import OldEvents
from agentmill.schemas.formats.openhands.sdk_events import SdkEvents
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.parts import renamed
from agentmill.schemas.profiles.private import REMOVED, PrivatePath
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Outcome, OutcomeStatus, Trajectory

CONVERTER_VERSION = "3"
NAME = "openhands"
EVENTS = ("history", "trajectory", "events")
"""Where a record of a run holds its events."""
PERSONAL = ("email", "token", "LLM_API_KEY", "llm_api_key")
"""Fields of a record, of its events, and of what these hold, that are never stored; the keys are in settings."""
_PRIVATE = [PrivatePath(f"{place}.{name}") for place in ("$", "args", "extras") for name in PERSONAL]


class OpenHands(Config):
    """OpenHands event logs, old and SDK, with the label of the record around them. They are only read."""

    personal: ClassVar[bool] = True
    """A record may hold personal fields, so that none is stored as it is, not even one that cannot be read."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """Raises ``FormatError``.

        Reasons: those of ``decode``; ``invalid`` for other shapes; ``too_deep``; ``empty``: no event.
        """
        events, record = _events(decode(raw))
        # Counted without their values, and before anything of the record is kept.
        losses = Losses({key: 1 for key in PERSONAL if record.get(key) is not None})
        record = {key: value for key, value in present(record).items() if key not in PERSONAL}
        for path in _PRIVATE:
            found: Counter[str] = Counter()
            events = path.remove(events, found)
            losses[path.name] += found[REMOVED + path.text]
        events = [_present(event) for event in events]
        # Only events of the SDK have a kind.
        log = (SdkEvents if any("kind" in each for each in events) else OldEvents)(losses)
        for event in events:
            log.read(event)
        log.transcript.arrange()
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        task_id = record.pop("instance_id", None)
        kept = log.kept() | log.transcript.notes()
        run = Trajectory(
            trajectory_id=trajectory_id,
            content=log.transcript.content,
            task_id=None if task_id is None else str(task_id),
            system_prompt=log.transcript.system_prompt,
            tools=log.tools,
            outcome=_outcome(record),
            usage=log.usage(),
            source=source,
            extra={NAME: renamed(record, kept) | kept},
        )
        return Read(run, +losses, (), log.transcript.remarks + link_remarks(run.content, run.tools))


def _present(event: JsonObject) -> JsonObject:
    """An event without the nulls of a table, in which each has the fields and arguments of all others."""
    args = event.get("args")
    return present({**event, "args": present(args)} if isinstance(args, dict) else event)


def _events(document: Any) -> tuple[list[JsonObject], JsonObject]:
    """The events, and the other fields of the record that holds them."""
    record: JsonObject = {}
    events = document
    if isinstance(document, dict):
        key = next((key for key in EVENTS if isinstance(document.get(key), list)), None)
        if key is None:
            raise FormatError("invalid", f"expected a list of events, or an object with one under {', '.join(EVENTS)}")
        record = {name: value for name, value in document.items() if name != key}
        events = document[key]
    if not isinstance(events, list):
        raise FormatError("invalid", f"expected a list of events, got {type(document).__name__}")
    # Older logs hold pairs of an action and its observation.
    flat = [each for event in events for each in (event if isinstance(event, list) else [event])]
    if not all(isinstance(each, dict) for each in flat):
        raise FormatError("invalid", "expected events that are objects")
    if not flat:
        raise FormatError("empty", "there are no events")
    return flat, record


def _outcome(record: JsonObject) -> Outcome:
    """The label of a run: ``resolved``, alone or in the report of its tests, or the feedback of a person."""
    test_result = record.get("test_result")
    report = test_result.get("report") if isinstance(test_result, dict) else None
    report = report if isinstance(report, dict) else record.get("report")
    resolved = record.get("resolved", report.get("resolved") if isinstance(report, dict) else None)
    error = record.get("error")
    reason = error if isinstance(error, str) and error else None
    status: OutcomeStatus = "unknown"
    if isinstance(resolved, bool | int | float):
        status = "success" if resolved else "failure"
    elif record.get("feedback") in ("positive", "negative"):
        status = "success" if record["feedback"] == "positive" else "failure"
    return Outcome(status=status, reason=reason)
