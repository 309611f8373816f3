"""SWE-agent's ``.traj`` files (arXiv:2405.15793).

``history`` is what the model saw, ``trajectory`` has a step per reply; either may lack what the other has, so the two
are aligned. An observation's text is the one in ``history``; that of the step, which it begins with, is kept where it
does not. A command in text is code in ``bash``, a structured call a call. How a run ended (``exit_status``) does not
say whether it passed: the outcome's status stays unknown. Demonstrations are no part of the run and are kept in
``extra``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Remarks, parse, provenance
from agentmill.schemas.formats.swe_agent.turns import Run, read_run
from agentmill.schemas.ids import part_id
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.parts import count_of, image_remarks, number_of
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Outcome, Source, Trajectory, Usage

CONVERTER_VERSION = "2"
NAME = "swe_agent"
LIMITS = ("exit_cost", "exit_context", "exit_total_execution_time", "exit_command_timeout", "early_exit")
"""What ``exit_status`` holds where a limit ended the run."""


class SweAgent(Config):
    """Files of SWE-agent 0.x and 1.x, those of its retrying agents and demonstrations included. They are only read."""

    personal: ClassVar[bool] = True
    """A record may hold keys to the APIs of models, so that none is stored as it is."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """The run; of a retrying agent the best, and the other attempts with it. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` where there is no run, or something else in the place of one.
        """
        document = parse(raw)
        losses = Losses()
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        attempts = _objects(document, "attempts")
        whole = {key: value for key, value in document.items() if key != "attempts"}
        best = _best(document, attempts)
        others = [(number, each) for number, each in enumerate(attempts) if number != best]
        # Without a run at the top the first attempt takes its place.
        if attempts and "trajectory" not in document and "history" not in document:
            whole = {**attempts[0], "run": whole} if whole else attempts[0]
            best, others = 0, others[1:]
        elif best is not None:
            differing = {key: value for key, value in attempts[best].items() if whole.get(key) != value}
            whole = {**whole, "attempt": differing} if differing else whole
        run = read_run(_objects(whole, "history"), _objects(whole, "trajectory"))
        main = _trajectory(whole, run, trajectory_id, source, best or 0, losses)
        branches = []
        remarks = _remarks(run, main)
        for number, each in others:
            other = read_run(_objects(each, "history"), _objects(each, "trajectory"))
            name = part_id(trajectory_id, f"attempt-{number}")
            branches.append(_trajectory(each, other, name, source, number, losses))
            remarks += _remarks(other, branches[-1])
        return Read(main, +losses, tuple(branches), remarks)


def _remarks(run: Run, trajectory: Trajectory) -> Remarks:
    found = run.transcript.remarks + link_remarks(trajectory.content, trajectory.tools)
    return found + image_remarks(trajectory.content)


def _best(document: JsonObject, attempts: list[JsonObject]) -> int | None:
    """Which attempt the record repeats at its top."""
    steps = document.get("trajectory")
    return next((number for number, each in enumerate(attempts) if steps and each.get("trajectory") == steps), None)


def _objects(document: JsonObject, key: str) -> list[JsonObject]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise FormatError("invalid", f"expected {key!r}, a list of objects, got {value!r:.60}")
    return value


def _trajectory(
    document: JsonObject, run: Run, trajectory_id: str, source: Source, attempt: int, losses: Losses
) -> Trajectory:
    if not (document.get("history") or document.get("trajectory")):
        raise FormatError("invalid", "expected 'history' or 'trajectory' with at least one entry")
    info = document.get("info")
    info = dict(info) if isinstance(info, dict) else {}
    status = info.pop("exit_status", None) if isinstance(info.get("exit_status"), str | None) else None
    kept = {key: value for key, value in document.items() if key not in ("history", "trajectory", "info")}
    usage = _usage(info)
    replay = _replay(kept, losses)
    statement = replay.get("problem_statement")
    task_id = statement.get("id") if isinstance(statement, dict) else None
    kept |= {"info": info} if info else {}
    kept |= run.kept
    return Trajectory(
        trajectory_id=trajectory_id,
        content=run.transcript.content,
        task_id=task_id if isinstance(task_id, str) else None,
        attempt=attempt,
        system_prompt=run.transcript.system_prompt,
        outcome=_outcome(status),
        usage=usage,
        source=source,
        extra={NAME: kept | run.transcript.notes()},
    )


def _outcome(reason: str | None) -> Outcome:
    return Outcome(
        terminated=reason == "submitted",
        truncated=reason is not None and any(limit in reason for limit in LIMITS),
        reason=reason,
    )


def _usage(info: JsonObject) -> Usage:
    """Tokens and cost; zero is what SWE-agent writes where nothing was counted. What is taken leaves ``info``."""
    stats = info.get("model_stats")
    if not isinstance(stats, dict):
        return Usage()
    names = {"tokens_sent": "prompt_tokens", "tokens_received": "completion_tokens", "instance_cost": "cost_usd"}
    figures = {name: number for name in names if (number := number_of(stats.get(name))) is not None and number > 0}
    values = {name: number if name == "instance_cost" else count_of(int(number)) for name, number in figures.items()}
    taken = {name: value for name, value in values.items() if value is not None}
    info["model_stats"] = {name: value for name, value in stats.items() if name not in taken}
    return msgspec.convert({names[name]: value for name, value in taken.items()}, Usage)


def _replay(kept: JsonObject, losses: Losses) -> JsonObject:
    """The configuration of the run, as an object, without the keys to the APIs of its models."""
    replay = kept.get("replay_config")
    if isinstance(replay, str):
        try:
            # SWE-agent writes the configuration as JSON text within the JSON.
            replay = parse(replay.encode())
        except FormatError:
            if _KEY in replay:  # a text that cannot be read may hold the key anywhere
                losses["replay_config"] += 1
                del kept["replay_config"]
            return {}
    if not isinstance(replay, dict):
        return {}
    try:
        replay = kept["replay_config"] = _without_keys(replay, losses)
    except RecursionError as error:
        raise FormatError("too_deep", "values are nested deeper than can be read") from error
    return dict(replay)


_KEY = "api_key"


def _without_keys(value: Any, losses: Losses) -> Any:
    """``value`` with null for each key to an API: a retrying agent has one for each of its agents and for its judge."""
    if isinstance(value, list):
        return [_without_keys(each, losses) for each in value]
    if not isinstance(value, dict):
        return value
    losses[f"replay_config.{_KEY}"] += value.get(_KEY) is not None
    return {name: None if name == _KEY else _without_keys(each, losses) for name, each in value.items()}
