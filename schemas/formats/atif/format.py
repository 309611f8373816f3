"""The Agent Trajectory Interchange Format (Harbor RFC 0001): reads versions 1.0 to 1.8 and ADP's dialect, writes 1.7.

What ATIF has no field for is written in our own words into ``extra`` under ``agentmill`` (of the trajectory, a step, a
call or a result), which is where the RFC wants it, and read back from there. Embedded sub-agents are runs of their own;
``extra`` of each says of which run it is part.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Remarks, Written, parse, provenance
from agentmill.schemas.formats.atif.fields import AGENT, FINAL_METRICS, TRAJECTORY, VERSION, VERSIONS, AtifDialect, keep
from agentmill.schemas.formats.atif.reader import StepReader, beyond_results, step_results
from agentmill.schemas.formats.atif.writer import write_steps
from agentmill.schemas.formats.extension_fields import OURS, extension_fields, from_own_words
from agentmill.schemas.ids import part_id
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.parts import count_of, image_remarks, number_of
from agentmill.schemas.messages.tools import read_tools, write_tools
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Source, Trajectory, Usage

CONVERTER_VERSION = "1"
NAME = "atif"
OWN_NAMES = ("system", "content", "part_of", "tools")
"""Under these names in ``extra`` are notes of ours."""
_TOTALS = {
    "total_prompt_tokens": "prompt_tokens",
    "total_completion_tokens": "completion_tokens",
    "total_cached_tokens": "cached_tokens",
    "total_cost_usd": "cost_usd",
}


class Atif(Config):
    """Trajectories in the Agent Trajectory Interchange Format (ATIF).

    ``dialect`` is what is written: ``strict`` as in the RFC, ``adp`` as ADP's tools want it.
    """

    dialect: AtifDialect = "strict"

    def read(self, raw: Raw, origin: Origin) -> Read:
        """Raises ``FormatError``: those of ``parse``; ``unknown_version``; ``invalid`` for a broken or missing part."""
        document = parse(raw)
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        losses, remarks = Losses(), Remarks()
        runs = _read(document, trajectory_id, source, None, losses, remarks)
        for run in runs:
            remarks += link_remarks(run.content, run.tools) + image_remarks(run.content)
        return Read(runs[0], +losses, tuple(runs[1:]), +remarks)

    def write(self, trajectory: Trajectory) -> Written:
        """One document; sub-agents are in it if they were when it was read. Raises ``FormatError`` (``empty``)."""
        losses = Losses()
        atif = trajectory.extra.get(NAME, {})
        content = trajectory.content
        steps, prompt = write_steps(trajectory.system_prompt, content, atif, self.dialect, losses)
        if not steps:
            raise FormatError("empty", "there is nothing that a step could say")
        document: JsonObject = {"schema_version": VERSION}
        known = ("schema_version", "agent", "final_metrics", "extra", *OWN_NAMES)
        document |= {key: value for key, value in atif.items() if key not in known}
        if self.dialect == "strict":
            keep(document, TRAJECTORY, "trajectory", losses)
        document |= {"agent": _agent(trajectory, atif, losses), "steps": steps}
        metrics = _final_metrics(trajectory, atif, len(steps), losses)
        document |= {"final_metrics": metrics} if metrics else {}
        # The first system step says the prompt, unless the steps were such that another one is read from them.
        counts = {"tools"} | ({"system_prompt"} if prompt == trajectory.system_prompt else set())
        own = extension_fields(trajectory, NAME, frozenset(counts | {"usage"}))
        own |= {"usage": {"seconds": trajectory.usage.seconds}} if trajectory.usage.seconds is not None else {}
        extra = {**atif.get("extra", {}), **({OURS: own} if own else {})}
        return Written(document | ({"extra": extra} if extra else {}), +losses)


def _read(
    document: JsonObject, trajectory_id: str, source: Source, whole: str | None, losses: Losses, remarks: Remarks
) -> list[Trajectory]:
    """The run and its sub-agents; ``whole`` is the id of the run that it is part of."""
    _check(document)
    reader = StepReader()
    for step in document["steps"]:
        reader.read(step)
    agent = document.get("agent") or {}
    tools, note, dropped = read_tools(agent.get("tool_definitions"), "object")
    losses.update(dropped)
    losses["steps.step_id"] += reader.transcript.remarks["step_id_gap"]
    losses.update(f"steps.observation.{key}" for step in document["steps"] for key in beyond_results(step))
    # Other names of the document would be taken for our own notes.
    losses.update(key for key in OWN_NAMES if document.get(key) is not None)
    read = ("steps", "agent", "extra", *OWN_NAMES)
    kept: JsonObject = {key: value for key, value in document.items() if key not in read}
    agent = {key: value for key, value in agent.items() if key != "tool_definitions"}
    usage, kept["final_metrics"] = _usage(document.get("final_metrics"))
    kept |= {"agent": agent} | ({"system": reader.system} if reader.system else {})
    kept |= reader.transcript.notes()
    kept |= ({"tools": note} if note else {}) | ({"part_of": whole} if whole is not None else {})
    extra = document.get("extra") or {}
    own = from_own_words(extra.get(OURS)) or {}
    if rest := {key: value for key, value in extra.items() if key != OURS or not own}:
        kept["extra"] = rest
    kept = {key: value for key, value in kept.items() if value is not None}
    seconds = number_of((own.pop("usage", None) or {}).get("seconds"))
    values = {"system_prompt": reader.transcript.system_prompt, **own}
    values["extra"] = {**own.get("extra", {}), NAME: kept}
    run = msgspec.convert({**values, "trajectory_id": trajectory_id, "content": []}, Trajectory)
    usage = msgspec.structs.replace(usage, seconds=seconds)
    run = msgspec.structs.replace(run, content=reader.transcript.content, source=source, tools=tools, usage=usage)
    remarks.update(reader.transcript.remarks)
    return [run, *_parts(document, trajectory_id, source, losses, remarks)]


def _parts(
    document: JsonObject, trajectory_id: str, source: Source, losses: Losses, remarks: Remarks
) -> list[Trajectory]:
    """The runs of embedded sub-agents."""
    runs: list[Trajectory] = []
    parts = document.get("subagent_trajectories") or []
    names = [part.get("trajectory_id") for part in parts if isinstance(part, dict)]
    remarks["repeated_trajectory_id"] += len(names) - len(set(map(str, names)))
    for reference in _references(document):
        target, path = reference.get("trajectory_id"), reference.get("trajectory_path")
        remarks["cyclic_reference"] += target is not None and target == document.get("trajectory_id")
        remarks["unresolved_reference"] += path is None and target not in [*names, document.get("trajectory_id")]
    for number, part in enumerate(parts):
        if not isinstance(part, dict):
            raise FormatError("invalid", f"expected subagent_trajectories that are objects, got {part!r:.60}")
        name = part_id(trajectory_id, f"sub-agent-{number}")
        runs += _read(part, name, source, trajectory_id, losses, remarks)
    return runs


def _references(document: JsonObject) -> list[JsonObject]:
    given = [each.get("subagent_trajectory_ref") for step in document["steps"] for each in step_results(step) or ()]
    lists = [references for references in given if isinstance(references, list)]
    return [each for references in lists for each in references if isinstance(each, dict)]


def _check(document: JsonObject) -> None:
    version = document.get("schema_version")
    if not isinstance(version, str) or version not in VERSIONS:
        raise FormatError("unknown_version", f"expected ATIF-v1.0 to ATIF-v1.8, got {version!r:.60}")
    expected: dict[str, Any] = {"agent": dict | None, "extra": dict | None, "subagent_trajectories": list | None}
    for key, kind in expected.items():
        if not isinstance(document.get(key), kind):
            raise FormatError("invalid", f"{key!r} is {document[key]!r:.60}")
    steps = document.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise FormatError("invalid", f"expected 'steps', a list of objects, got {steps!r:.60}")
    if not steps:
        raise FormatError("empty", "there are no steps")


def _usage(metrics: Any) -> tuple[Usage, JsonObject | None]:
    """What the run cost, and what else the final metrics say."""
    if not isinstance(metrics, dict):
        return Usage(), None
    counts = {name: (number_of if name == "total_cost_usd" else count_of)(metrics.get(name)) for name in _TOTALS}
    values = {_TOTALS[name]: each for name, each in counts.items() if each is not None}
    return msgspec.convert(values, Usage), {key: value for key, value in metrics.items() if counts.get(key) is None}


def _final_metrics(trajectory: Trajectory, atif: JsonObject, steps: int, losses: Losses) -> JsonObject:
    metrics = dict(atif.get("final_metrics") or {})
    totals = {name: getattr(trajectory.usage, field) for name, field in _TOTALS.items()}
    metrics |= {name: value for name, value in totals.items() if value is not None}
    # A record that was read may have left the number of steps out, and is written as it was.
    if NAME not in trajectory.extra:
        metrics["total_steps"] = steps
    keep(metrics, FINAL_METRICS, "final_metrics", losses)
    return metrics


def _agent(trajectory: Trajectory, atif: JsonObject, losses: Losses) -> JsonObject:
    """Who acted: as it was read, or as we made it."""
    generation = trajectory.generation
    model = generation.model if generation is not None else None
    agent = dict(atif.get("agent") or {"name": generation.scaffold if generation else "unknown", "model_name": model})
    agent.setdefault("name", "unknown")
    agent.setdefault("version", "unknown")
    tools = write_tools(trajectory.tools, atif.get("tools", {}), "object")
    agent |= {"tool_definitions": tools} if tools else {}
    keep(agent, AGENT, "agent", losses)
    return agent
