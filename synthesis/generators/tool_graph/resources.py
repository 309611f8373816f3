"""What each tool does to which resource, read from its address and method, or from the words of its name.

A resource is what rows are of: the last segment of an address that is a noun (``/guests/{id}/bookings``), or the words
between verb and preposition (``list_bookings_of_guest``). Some field must identify its rows: ``id``, or ``booking_id``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from agentmill.synthesis.generators.tool_graph.given_tools import Field, GivenTool, ToolError
from agentmill.synthesis.generators.tool_graph.naming import Effect, identified, is_plural, singular, snake, words

MOST_ARGUMENTS = 10
"""Arguments of a tool; optional values beyond are left out."""

_VERSION = re.compile(r"v\d+(_\d+)*")
_METHODS: dict[str, Effect] = {"get": "read", "put": "change", "patch": "change", "delete": "remove"}


class Part(msgspec.Struct, frozen=True):
    """An argument or a field of a result, and what it is: the row that it ``identifies``, by a noun, or a value."""

    field: Field
    identifies: str | None

    @property
    def is_value(self) -> bool:
        """Whether a column can hold it."""
        return self.field.kind != "nested"


class Understood(msgspec.Struct, frozen=True):
    """A tool and its effect on a resource; ``verb`` is its first word, or that of its address."""

    tool: GivenTool
    noun: str
    effect: Effect
    verb: str
    arguments: tuple[Part, ...]
    result: tuple[Part, ...] | None

    @property
    def kept(self) -> list[Part]:
        """The arguments but those that nothing can hold, and of many optional values the last ones."""
        held = [part for part in self.arguments if part.is_value]
        free = [part for part in held if self._is_optional_value(part)]
        cut = free[max(0, MOST_ARGUMENTS - len(held) + len(free)) :]
        return [part for part in held if part not in cut]

    def _is_optional_value(self, part: Part) -> bool:
        return not (part.field.required or part.field.in_path or part.identifies == self.noun)

    @property
    def assumed(self) -> bool:
        """Whether its result is taken to be the row: the specification tells none, or one that is no row of a write."""
        return self.effect != "remove" and (self.result is None or (not self.result and self.effect != "read"))


def understand(tools: Iterable[GivenTool]) -> Iterator[Understood | tuple[GivenTool, ToolError]]:
    """Each tool with its resource and effect, or the reason why it has none; in the order given."""
    given = list(tools)
    known = {noun for tool in given for noun in _nouns(tool)}
    found: list[Understood | tuple[GivenTool, ToolError]] = []
    for tool in given:
        try:
            found.append(_by_address(tool, known) if tool.path else _by_name(tool, known))
        except ToolError as error:
            found.append((tool, error))
    keyed = {each.noun for each in found if isinstance(each, Understood) and _has_key(each)}
    for each in found:
        if isinstance(each, Understood) and each.noun not in keyed:
            detail = f"no field or argument of any tool identifies a row of {each.noun}, such as {each.noun}_id"
            yield each.tool, ToolError("no_key", detail)
        else:
            yield each


def _nouns(tool: GivenTool) -> Iterator[str]:
    """The nouns that fields identify by name, and the plurals in its address."""
    for field in (*tool.arguments, *(tool.result or ())):
        noun = identified(field.name, "")
        if noun:
            yield noun
    yield from (singular(static) for static, _ in _segments(tool.path) if is_plural(static))


def _has_key(understood: Understood) -> bool:
    return any(part.identifies == understood.noun for part in (*understood.arguments, *(understood.result or ())))


def _segments(path: str) -> list[tuple[str, str | None]]:
    """The fixed segments of an address, each with the parameter behind it."""
    found: list[tuple[str, str | None]] = []
    for segment in filter(None, path.split("/")):
        if segment.startswith("{"):
            if found and found[-1][1] is None:
                found[-1] = (found[-1][0], segment.strip("{}"))
            continue
        name = snake(segment)
        if name and (found or not (name in words().prefixes or _VERSION.fullmatch(name))):
            found.append((name, None))
    return found


def _by_address(tool: GivenTool, known: Collection[str]) -> Understood:
    segments = _segments(tool.path)
    if not segments:
        raise ToolError("no_resource", f"no segment of {tool.path} is a noun")
    name, parameter = segments[-1]
    verb = _verb(snake(tool.name).split("_"))[0]
    is_noun = (is_plural(name) or singular(name) in known or len(segments) == 1) and name not in words().verbs
    if not is_noun and len(segments) > 1:
        verb = name if tool.method in ("post", "put") else verb
        name, parameter = segments[-2]
    noun = singular(name)
    owners = {static: singular(static) for static, _ in segments}
    by_parameter = {given: owners[static] for static, given in segments if given}
    effect = _METHODS.get(tool.method) or _posted(verb, on_row=parameter is not None or not is_noun)
    arguments = tuple(Part(each, _identifies(each, noun, by_parameter)) for each in tool.arguments)
    if effect == "change" and not any(not each.field.in_path and each.is_value for each in arguments):
        effect = "step"
    if effect == "remove" and (parameter is None or not is_noun):
        raise ToolError("unknown_effect", "it does not delete one row of a resource")
    return Understood(tool, noun, effect, verb, arguments, _result(tool, noun))


def _posted(verb: str, *, on_row: bool) -> Effect:
    """The effect of a POST, by its verb where that is known."""
    found = words().verbs.get(verb)
    if found == "read" or (found in ("change", "remove") and on_row):
        return found
    return "step" if on_row else "create"


def _identifies(field: Field, noun: str, by_parameter: dict[str, str]) -> str | None:
    if field.in_path and field.name in by_parameter:
        owner = by_parameter[field.name]
        return owner if snake(field.name) in (owner, "id", "uuid", "guid") else identified(field.name, owner)
    return identified(field.name, noun)


def _by_name(tool: GivenTool, known: Collection[str]) -> Understood:
    verb, rest = _verb(snake(tool.name).split("_"))
    spoken = []
    for token in rest:
        if token in words().prepositions:
            break
        spoken += [token] * (token not in words().fillers)
    if not spoken:
        raise ToolError("no_resource", f"the name {tool.name} has no noun")
    noun = _noun(spoken, known)
    effect: Effect = words().verbs.get(verb, "step")
    taken = [each for field in tool.arguments if (each := identified(field.name, ""))]
    if effect in ("change", "step") and taken:
        noun = taken[0]  # `assign_driver(parcel_id, driver_id)` changes the parcel
    if effect == "create" and noun in taken:
        # `book_room(room_id)` makes a booking: what its result identifies and no argument does.
        made = [identified(each.name, "") for each in tool.result or ()]
        noun = next((each for each in made if each and each not in taken), noun)
    arguments = tuple(Part(each, identified(each.name, noun)) for each in tool.arguments)
    return Understood(tool, noun, effect, verb, arguments, _result(tool, noun))


def _verb(tokens: list[str]) -> tuple[str, list[str]]:
    """The verb of a name and the words behind it; the name of a service may come first (`hotel_list_rooms`)."""
    if len(tokens) > 1 and tokens[0] not in words().verbs and tokens[1] in words().verbs:
        tokens = tokens[1:]
    if len(tokens) > 1 and tokens[0] not in words().verbs and tokens[1] in ("in", "out", "up", "off"):
        return f"{tokens[0]}_{tokens[1]}", tokens[2:]
    return tokens[0], tokens[1:]


def _noun(spoken: list[str], known: Collection[str]) -> str:
    """The longest run of words that some field identifies, or else all of them."""
    spans = [
        singular("_".join(spoken[start : start + length]))
        for length in range(len(spoken), 0, -1)
        for start in range(len(spoken) - length + 1)
    ]
    return next((span for span in spans if span in known), spans[0])


def _result(tool: GivenTool, noun: str) -> tuple[Part, ...] | None:
    if tool.result is None:
        return None
    return tuple(Part(each, identified(each.name, noun)) for each in tool.result)
