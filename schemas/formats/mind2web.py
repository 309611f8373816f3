"""Mind2Web (arXiv:2306.06070): what people did on web pages, step by step, with the elements that they chose from.

A record says what element was acted on, not what an agent saw or thought: descriptions and outcomes stay empty. The
page of the next step is what an action led to.
"""

from __future__ import annotations

from typing import Any

from schemas.config import Config
from schemas.formats.format import FormatError, Losses, Origin, Raw, Read, parse, provenance
from schemas.formats.links import link_remarks
from schemas.formats.transcript import Transcript
from schemas.formats.values import text_of
from schemas.record import JsonObject
from schemas.trajectory import ApiAction, TextObservation, Trajectory, WebObservation

CONVERTER_VERSION = "1"
NAME = "mind2web"


class Mind2Web(Config):
    """Mind2Web's demonstrations. They are only read.

    A call is the operation, as the record spells it, on the ``backend_node_id`` of the element, with its ``value`` if
    it has one. All elements, and the page in its cleaned form, stand in ``extra``.
    """

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The run of a record. Raises ``FormatError``: those of ``parse``; ``invalid`` where it has no operation."""
        document = parse(raw)
        steps = document.pop("actions", None)
        if not isinstance(steps, list) or not steps or not all(_is_step(step) for step in steps):
            raise FormatError("invalid", f"expected 'actions', a list with operations, got {steps!r:.60}")
        transcript = Transcript()
        kept: JsonObject = {}
        task = text_of(document, "confirmed_task", kept)
        if task is not None:
            transcript.add(TextObservation(content=task, source="user"), {})
        call_id = None
        for place, step in enumerate(steps):
            rest = {name: value for name, value in step.items() if name not in ("raw_html", "operation")}
            page = WebObservation(html=text_of(step, "raw_html", rest), tool_call_id=call_id)
            transcript.add(page, rest)
            transcript.turn += 1
            rest = {}
            call_id = transcript.call_id(None, rest) if place + 1 < len(steps) else None
            transcript.add(_call(step, call_id, rest), rest)
        kept |= {name: value for name, value in document.items() if name != "confirmed_task"}
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        run = Trajectory(
            trajectory_id=trajectory_id,
            content=transcript.content,
            source=source,
            extra={NAME: {**kept, **transcript.notes()}},
        )
        return Read(run, Losses(), remarks=transcript.remarks + link_remarks(run.content, ()))


def _is_step(step: Any) -> bool:
    operation = step.get("operation") if isinstance(step, dict) else None
    return isinstance(operation, dict) and isinstance(operation.get("op"), str) and operation["op"] != ""


def _call(step: JsonObject, call_id: str | None, rest: JsonObject) -> ApiAction:
    """The operation on the element that was chosen; what else it says goes into ``rest``."""
    operation: JsonObject = step["operation"]
    rest |= {name: value for name, value in operation.items() if name not in ("op", "value")}
    element, value = _element(step.get("pos_candidates")), operation.get("value")
    kwargs = {"backend_node_id": element} if element is not None else {}
    kwargs |= {"value": value} if value not in (None, "") else {}
    return ApiAction(function=operation["op"], kwargs=kwargs, tool_call_id=call_id)


def _element(candidates: Any) -> Any:
    """The node that was acted on: the original target, or else the first that would do."""
    known = [each for each in candidates if isinstance(each, dict)] if isinstance(candidates, list) else []
    chosen = next((each for each in known if each.get("is_original_target") is True), known[0] if known else {})
    return chosen.get("backend_node_id")
