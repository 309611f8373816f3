"""The items of an ADP trajectory, one by one: which fields they have, and how they map to ours."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, cast

import msgspec

from agentmill.schemas.format import FormatError, Losses
from agentmill.schemas.formats.adp.links import position_ids
from agentmill.schemas.records.record import JsonObject, defaults
from agentmill.schemas.records.trajectory import (
    Action,
    AnyItem,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    TextObservation,
    WebObservation,
)

_NAMES = """
    actionscript ada afl agda angular apache applescript aql arduino arm array as3 asciidoc asm asp aspx assembly
    autohotkey awk bash basic bat batch batchfile bibtex bison blade brainfuck breadcrumbs buildx c cabal cad
    cafeobj ceylon cfg cfml chapel cil cisco clojure cmake cmd cobol code coffeescript coldfusion commandline conf
    console coq cpp cql cs csharp css csv cuda cypher cython d dart dax delphi diff django dockefile docker
    dockerfile dotenv doxygen dsl dtd dts eigenmath ejs elisp elixir env erb erlang euler excel flatbuffers flux
    forth fortran freemarker fsharp futura gamescript gap genetic gherkin git glsl gml gnuplot go golang gp gradle
    graphql groff groovy handlebars haskell hcl hlsl hocon hol hscript html http husk hypothetical ics idl idris
    ini isabelle jags java javascipt javascript javasript jenkins jinja jl jldoctest jquery js json jsp jsx julia
    kconfig kotlin language latex ld lean less liquid lisp llvm lua m4 make makefile maple markdown math
    mathematica matlab maxmsp mdx mermaid meson ml mongo mongodb moonscript mumps mysql nasm netlogo nginx nit nix
    node npm nsis objc objectscript obscuria ocaml octave openqasm ourcodelang output p4 pari pascal pddl perl
    pgsql php phpt pinescript plaintext plantuml plpgsql plsql postgres postgresql powerapps powershell pro prolog
    properties proto protobuf ps pseudo pseudo_code pseudo_rust pseudocode puppet py python python3 python4 qlik
    qmake qml qsharp quantum r racket rdf react redis regex rest restructuredtext rst ruby rust s sage sagemath
    sas sass scad scala scheme scificode scilab scss sh shakespeare shell simpli sm smalltalk smarty smile sml
    solidity sonnet sparql sql sqlite stan stata svelte svg swift swig systemverilog targetlang targetql terraform
    tex text thrift tlbuild tomail toml troff ts tsx turtle twig txt typescript usql vb vba vbnet vbs vbscript
    vcard velocity verilog vhdl vim voxelscript vtl vue wasm wolfram xaml xbasic xhtml xml xpath xpp xslt xyz yaml
    yang yml
"""
LANGUAGES = frozenset(_NAMES.split())

ALIASES = {
    "c#": "csharp",
    "c++": "cpp",
    "f#": "fsharp",
    "ipython": "python",
    "jupyter": "python",
    "node.js": "node",
    "nodejs": "node",
    "objective-c": "objc",
    "q#": "qsharp",
    "shell-session": "console",
    "zsh": "shell",
}
"""Common names of languages that ADP knows under another."""

OTHER = "code"
"""What a language is called that ADP does not know."""


def legal_language(name: str) -> str:
    """``name`` if ADP allows it, else the nearest name that it does."""
    if name in LANGUAGES:
        return name
    lower = name.strip().lower()
    return lower if lower in LANGUAGES else ALIASES.get(lower, OTHER)


FIELDS: dict[str, tuple[type[msgspec.Struct], tuple[str, ...]]] = {
    "message_action": (MessageAction, ("content", "description")),
    "api_action": (ApiAction, ("function", "kwargs", "description")),
    "code_action": (CodeAction, ("language", "content", "description")),
    "text_observation": (TextObservation, ("content", "name", "source")),
    "image_observation": (ImageObservation, ("content", "source", "annotations")),
    "web_observation": (WebObservation, ("html", "axtree", "url", "image_observation", "viewport_size")),
}
"""By class name: our type, and the fields of version 1, all of them always written."""

_LATER = ("class_", "reward", "tool_call_id")
_PLAIN = {
    name: frozenset({*own, *_LATER} | ({"reasoning_content"} if issubclass(record_type, Action) else set()))
    for name, (record_type, own) in FIELDS.items()
    if record_type not in (ImageObservation, WebObservation)
}
"""By class name the fields of the items that have no records inside."""

_CLASSES = {record_type: name for name, (record_type, _) in FIELDS.items()}
_ANNOTATION = frozenset({"text", "element_type", "bounding_box"})


def read_items(items: list[Any]) -> tuple[list[AnyItem], JsonObject]:
    """The actions and observations, and by index as text the fields of each that we have none for.

    Raises ``FormatError``: ``unknown_class``, or ``invalid`` for a broken one.
    """
    # Most records need nothing else. Whatever fails here is read one by one, which names the item.
    if all(map(_is_plain, items)):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(items, list[AnyItem]), {}
    found = [_read_item(item, index) for index, item in enumerate(items)]
    return [item for item, _ in found], {str(index): rest for index, (_, rest) in enumerate(found) if rest}


def _is_plain(item: Any) -> bool:
    """Whether an item has no other fields than those that we hold, and none inside that could."""
    name = item.get("class_") if isinstance(item, dict) else None
    return isinstance(name, str) and item.keys() <= _PLAIN.get(name, frozenset())


def _read_item(item: Any, index: int) -> tuple[AnyItem, JsonObject]:
    name = item.get("class_") if isinstance(item, dict) else None
    if not isinstance(name, str) or name not in FIELDS:
        raise FormatError("unknown_class", f"item {index} is of class {name!r:.60}; known: {', '.join(FIELDS)}")
    known, rest = _known(item)
    try:
        return cast(AnyItem, msgspec.convert(known, AnyItem)), rest
    except msgspec.ValidationError as error:
        raise FormatError("invalid", f"item {index}: {error}") from error


def write_item(item: AnyItem, version: str, losses: Losses, path: str = "content") -> JsonObject:
    """The item in version ``1`` or ``1.5``, without its turn and call id."""
    name = _CLASSES[type(item)]
    own = FIELDS[name][1]
    later = [] if version == "1" else ["reward", "reasoning_content"]
    written: JsonObject = {"class_": name, **{field: _plain(getattr(item, field)) for field in own}}
    for field, default in defaults(type(item)).items():
        value = getattr(item, field)
        if field in own or value == default or (field in ("turn", "tool_call_id") and path == "content"):
            continue
        if field in later:
            written[field] = value
        else:
            losses[f"{path}.{field}"] += 1
    if isinstance(item, WebObservation) and item.image_observation is not None:
        written["image_observation"] = write_item(item.image_observation, version, losses, f"{path}.image_observation")
    return written


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else msgspec.to_builtins(value)


def placed(content: Sequence[AnyItem]) -> list[AnyItem]:
    """``content`` with turns, and with call ids where it has none, as the order of the items says.

    Actions that follow each other share a turn: nothing was seen between them.
    """
    ids = position_ids(content)
    result = []
    turn = 0
    for index, item in enumerate(content):
        if isinstance(item, Action) and not (index and isinstance(content[index - 1], Action)):
            turn += 1
        name = item.tool_call_id if item.tool_call_id is not None else ids[index]
        result.append(msgspec.structs.replace(item, turn=turn, tool_call_id=name))
    return result


def legal_content(content: Sequence[AnyItem]) -> tuple[list[AnyItem], dict[str, str]]:
    """``content`` with languages that ADP allows, and the names of those it does not, by place."""
    result: list[AnyItem] = list(content)
    names = {}
    for index, item in enumerate(content):
        if isinstance(item, CodeAction) and (legal := legal_language(item.language)) != item.language:
            names[str(index)] = item.language
            result[index] = msgspec.structs.replace(item, language=legal)
    return result, names


def _known(item: JsonObject) -> tuple[JsonObject, JsonObject]:
    """The fields of an item that we hold, and those that we do not, unless they are null."""
    record_type, own = FIELDS[item["class_"]]
    held = {*own, *_LATER} | ({"reasoning_content"} if issubclass(record_type, Action) else set())
    known, rest = _parted(item, held)
    image = known.get("image_observation")
    if isinstance(image, dict) and image.get("class_", "image_observation") == "image_observation":
        # The class may be left out of an image inside of a page: nothing else can be there.
        known["image_observation"], more = _known({"class_": "image_observation", **image})
        rest |= {"image_observation": more} if more else {}
    annotations = known.get("annotations")
    if isinstance(annotations, list):
        parted = [_parted(one, _ANNOTATION) if isinstance(one, dict) else (one, {}) for one in annotations]
        known["annotations"] = [_with_text(one) for one, _ in parted]
        rest |= {"annotations": [more for _, more in parted]} if any(more for _, more in parted) else {}
    return known, rest


def _parted(fields: JsonObject, held: Collection[str]) -> tuple[JsonObject, JsonObject]:
    known = {key: value for key, value in fields.items() if key in held}
    return known, {key: value for key, value in fields.items() if key not in held and value is not None}


def _with_text(annotation: Any) -> Any:
    """An annotation; a null text is an empty one."""
    if not isinstance(annotation, dict) or "text" not in annotation:
        return annotation
    return {**annotation, "text": annotation["text"] or ""}
