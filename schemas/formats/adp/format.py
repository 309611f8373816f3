"""The Agent Data Protocol (arXiv:2510.24702): reads every version 1, writes 1 (the paper's) and 1.5.

What ADP has no field for is written under ``details["agentmill"]`` where it concerns the whole run (task, outcome,
system prompt, tools …) and read back from there; where it concerns one item it is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from agentmill.schemas.chat import to_functions
from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Remarks, Written, parse, provenance
from agentmill.schemas.formats.adp.items import legal_content, placed, read_items, write_item
from agentmill.schemas.formats.adp.links import position_ids, rule_remarks, strict_ids, unlinked
from agentmill.schemas.formats.extension_fields import OURS, extension_fields, from_own_words
from agentmill.schemas.messages.parts import image_remarks
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, Tool, Trajectory, WebObservation

CONVERTER_VERSION = "1"
NEWEST = "1.5.0"
NAME = "adp"
_KNOWN_1 = {"id", "schema_version", "details", "content"}
_KNOWN = {*_KNOWN_1, "available_custom_tools", "available_apis", "available_code_languages"}
"""Keys of a record that are written again: in version 1, and in 1.5, where ``available_apis`` was renamed."""


class Adp(Config):
    """Trajectories of the Agent Data Protocol (ADP); ``version`` is the one that is written."""

    version: Literal["1", "1.5"] = "1.5"

    def read(self, raw: Raw, origin: Origin) -> Read:
        """Any version 1. Raises ``FormatError``. What breaks the rules of 1.5 on links and tools is remarked on.

        Reasons: those of ``parse``; ``unknown_version``; ``invalid`` for a missing field or one of the wrong type;
        ``unknown_class`` for an item that ADP does not know.
        """
        document = parse(raw)
        _check(document)
        content, notes = read_items(document["content"])
        details = document.get("details") or {}
        ours = _ours(details)
        kept = {key: value for key, value in document.items() if key not in ("content", "details")}
        if rest := {key: value for key, value in details.items() if ours is None or key != OURS}:
            kept["details"] = rest
        if notes:
            kept["content"] = notes
        # Records of version 1 have no ids, and the rules on links came later.
        remarks = rule_remarks(content, document) if "schema_version" in document else Remarks()
        remarks += image_remarks(content)
        values = dict(ours or {})
        names = values.pop("languages", {})
        for index, item in enumerate(content):
            if isinstance(item, CodeAction) and str(index) in names:
                content[index] = msgspec.structs.replace(item, language=str(names[str(index)]))
        trajectory_id, source = provenance(raw, origin, NAME, CONVERTER_VERSION)
        values["extra"] = {**values.get("extra", {}), NAME: kept}
        # Only what a stranger may have written needs a check of types; the items are records already.
        run = msgspec.convert({**values, "trajectory_id": trajectory_id, "content": []}, Trajectory)
        return Read(msgspec.structs.replace(run, content=placed(content), source=source), Losses(), remarks=remarks)

    def write(self, trajectory: Trajectory) -> Written:
        """Raises ``FormatError`` (``unanswered_call``) where version 1.5 cannot say that a call got no answer."""
        losses = Losses()
        content, names = legal_content(trajectory.content)
        ids = position_ids(unlinked(content)) if self.version == "1" else strict_ids(content)
        adp = trajectory.extra.get(NAME, {})
        document: JsonObject = {"id": adp.get("id", trajectory.trajectory_id)}
        if self.version == "1.5":
            document = {"schema_version": NEWEST, **document, **_available(trajectory, adp)}
        written = [write_item(item, self.version, losses) for item in content]
        for item, fields, name in zip(content, written, ids, strict=True):
            losses["content.tool_call_id"] += item.tool_call_id != name
            if self.version == "1.5" and name is not None:
                fields["tool_call_id"] = name
        losses["content.turn"] = sum(a.turn != b.turn for a, b in zip(content, placed(content), strict=True))
        losses.update(key for key in adp if key not in (_KNOWN if self.version == "1.5" else _KNOWN_1))
        losses.update(f"content.{key}" for fields in adp.get("content", {}).values() for key in fields)
        details = {**adp.get("details", {}), **_unsayable(trajectory, names)}
        document["content"] = written
        document["details"] = _texts(details, losses) if self.version == "1" else details
        return Written(document, +losses)


def metadata(trajectories: Iterable[Trajectory]) -> JsonObject:
    """The ``metadata.json`` of a dataset in ADP 1.5: every tool called or declared, every language, browser or not.

    Of tools of one name the first declared is taken; a tool that is called but never declared takes any arguments.
    """
    tools: dict[str, Tool] = {}
    called: dict[str, Tool] = {}
    languages: set[str] = set()
    browser = False
    for trajectory in trajectories:
        for tool in trajectory.tools:
            tools.setdefault(tool.name, tool)
        for item in legal_content(trajectory.content)[0]:
            if isinstance(item, ApiAction):
                empty: JsonObject = {"type": "object", "properties": {}}
                called.setdefault(item.function, Tool(name=item.function, parameters=empty))
            elif isinstance(item, CodeAction):
                languages.add(item.language)
            browser = browser or isinstance(item, WebObservation)
    declared = [msgspec.structs.replace(tool, strict=None) for tool in {**called, **tools}.values()]
    return {"custom_tools": to_functions(declared), "code_enabled": sorted(languages), "browser_enabled": browser}


def _check(document: JsonObject) -> None:
    version = document.get("schema_version")
    version = "1" if version is None else version
    if not isinstance(version, str) or version.split(".")[0] != "1":
        raise FormatError("unknown_version", f"expected ADP 1 to {NEWEST}, got {version!r}")
    if version.split(".")[1:2] and version.split(".")[1] not in ("0", "1", "2", "3", "4", "5"):
        raise FormatError("unknown_version", f"expected ADP 1 to {NEWEST}, got {version!r}")
    expected: dict[str, type] = {"id": str, "content": list}
    for key, kind in expected.items():
        if not isinstance(document.get(key), kind):
            raise FormatError("invalid", f"expected {key!r}, a {kind.__name__}, got {document.get(key)!r:.60}")
    if not isinstance(document.get("details"), dict | None):
        raise FormatError("invalid", f"expected 'details', an object, got {document['details']!r:.60}")


def _ours(details: JsonObject) -> JsonObject | None:
    """What we wrote into ``details``, if it was us."""
    held = from_own_words(details.get(OURS), frozenset({"languages"}))
    return held if held is not None and isinstance(held.get("languages", {}), dict) else None


def _unsayable(trajectory: Trajectory, languages: dict[str, str]) -> JsonObject:
    """The fields of the run that ADP lacks, under our key."""
    held = extension_fields(trajectory, NAME)
    if languages:
        held["languages"] = languages
    return {OURS: held} if held else {}


def _texts(details: JsonObject, losses: Losses) -> dict[str, str]:
    """Details as version 1 has them, all texts; what is no text becomes JSON text, ours without being counted."""
    texts = {}
    for key, value in details.items():
        losses[f"details.{key}"] += key != OURS and not isinstance(value, str)
        texts[key] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return texts


def _available(trajectory: Trajectory, adp: JsonObject) -> JsonObject:
    """What version 1.5 says of the tools and languages; a record that said it already keeps what it said."""
    if "schema_version" in adp:
        stated = {"available_custom_tools": adp.get("available_custom_tools", adp.get("available_apis"))}
        return {key: value for key, value in stated.items() if value is not None} | _languages(trajectory, adp)
    called = [item.function for item in trajectory.content if isinstance(item, ApiAction)]
    names = list(dict.fromkeys([tool.name for tool in trajectory.tools] + called))
    return ({"available_custom_tools": names} if names else {}) | _languages(trajectory, {})


def _languages(trajectory: Trajectory, adp: JsonObject) -> JsonObject:
    used = {item.language for item in legal_content(trajectory.content)[0] if isinstance(item, CodeAction)}
    stated = adp.get("available_code_languages") if "schema_version" in adp else sorted(used)
    return {"available_code_languages": stated} if stated else {}
