"""Runs of Go-Browse (arXiv:2506.03533): a row per step, with the page before it and the action on it.

The rows of a run are one record (``group: {by: [traj_data.traj_num], order: step_data.step_number}``). The page of the
next row is what an action led to; the last action has no such page. Lost and unfinished runs are runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.config import Config
from schemas.formats.browser_calls import browser_action
from schemas.formats.format import FormatError, Losses, Origin, Raw, Read, decode, provenance
from schemas.formats.links import link_remarks
from schemas.formats.transcript import Transcript
from schemas.formats.values import number_of, text_of
from schemas.record import JsonObject
from schemas.trajectory import MessageAction, Outcome, TextObservation, Trajectory, WebObservation

CONVERTER_VERSION = "1"
NAME = "go_browse"


class GoBrowse(Config):
    """Go-Browse's step rows, those of a run together. They are only read."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The run of a list of rows, or of one. Raises ``FormatError``: those of ``decode``; ``invalid``."""
        given = decode(raw)
        rows = given if isinstance(given, list) else [given]
        if not rows or not all(isinstance(row, dict) and isinstance(row.get("step_data"), dict) for row in rows):
            raise FormatError("invalid", f"expected rows with 'step_data', got {given!r:.60}")
        kept = {name: value for name, value in rows[0].items() if name != "step_data"}
        run = dict(kept["traj_data"]) if isinstance(kept.get("traj_data"), dict) else {}
        transcript = Transcript()
        goal = text_of(run, "goal", {})
        if goal is not None:
            transcript.add(TextObservation(content=goal, source="user"), {})
        _read_steps(transcript, rows, kept)
        if transcript.turn == 0:
            raise FormatError("invalid", "no step has an action")
        outcome = _outcome(run)
        known = {
            "goal": goal,
            "reward": outcome.reward,
            "success": {"success": True, "failure": False}.get(outcome.status),
        }
        rest = {name: value for name, value in run.items() if name not in known or known[name] != value}
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        trajectory = Trajectory(
            trajectory_id=trajectory_id,
            content=transcript.content,
            outcome=outcome,
            source=source,
            extra={NAME: {**kept, **({"traj_data": rest} if run else {}), **transcript.notes()}},
        )
        return Read(trajectory, Losses(), remarks=transcript.remarks + link_remarks(transcript.content, ()))


def _outcome(run: JsonObject) -> Outcome:
    reward, success = number_of(run.get("reward")), run.get("success")
    if isinstance(success, bool):
        return Outcome(status="success" if success else "failure", reward=reward)
    return Outcome(reward=reward)


def _read_steps(transcript: Transcript, rows: list[JsonObject], shared: JsonObject) -> None:
    """Add every page and the action on it; what a row has of its own besides is kept with its page."""
    call_id, reply = None, None
    for place, row in enumerate(rows):
        step = row["step_data"]
        own = {name: value for name, value in row.items() if name != "step_data" and shared.get(name) != value}
        own |= {} if step.get("step_number") == place else {"step_number": step.get("step_number")}
        page, rest = _page(step.get("obs"), reply)
        transcript.add(msgspec.structs.replace(page, tool_call_id=call_id), own | rest)
        answered = place + 1 < len(rows)
        call_id, reply = _act(transcript, step, answered), step.get("action")


def _page(given: Any, reply: Any) -> tuple[WebObservation, JsonObject]:
    """The page as the agent saw it, and what else is said of it; ``reply`` is what the agent said before."""
    if not isinstance(given, dict):
        return WebObservation(), {"obs": given}
    rest = {name: value for name, value in given.items() if name not in ("axtree_txt", "pruned_html")}
    if rest.get("last_action") in (reply, None, ""):
        rest.pop("last_action", None)
    if not rest.get("last_action_error"):
        rest.pop("last_action_error", None)
    axtree, html = text_of(given, "axtree_txt", rest), text_of(given, "pruned_html", rest)
    return WebObservation(axtree=axtree, html=html, error="last_action_error" in rest), rest


def _act(transcript: Transcript, step: JsonObject, answered: bool) -> str | None:
    """Add the action of a step, as a turn; returns the id of its call if a page follows."""
    known = ("obs", "parsed_action", "thought", "action", "step_number")
    rest = {name: value for name, value in step.items() if name not in known}
    parsed, thought = text_of(step, "parsed_action", rest), text_of(step, "thought", rest)
    reply = step.get("action")
    if reply is not None and not (isinstance(reply, str) and _decoded(reply) == {"thought": thought, "action": parsed}):
        rest["action"] = reply
    said = parsed or thought or text_of(step, "action", {})
    if not said:
        transcript.rest[-1] |= rest
        return None
    transcript.turn += 1
    if not parsed:
        transcript.add(MessageAction(content=said), rest)
        return None
    call_id = transcript.call_id(None, rest) if answered else None
    action = msgspec.structs.replace(browser_action(parsed), description=thought, tool_call_id=call_id)
    transcript.add(action, rest)
    return call_id


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
