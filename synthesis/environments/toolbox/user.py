"""What the user wants, as a text with slots, and a user by rule who keeps some slots back until asked for them.

After DiaFORGE: required arguments are withheld, and the agent must find out which and ask.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from agentmill.schemas.records.trajectory import Tool as Schema
from agentmill.synthesis.environments.toolbox.calls import function
from agentmill.synthesis.environments.toolbox.changes import Settings
from agentmill.synthesis.environments.toolbox.toolbox import ASK_USER, DECLINE, FINISH, Toolbox

MAX_ASKED = 2
"""How many things a question may ask for; who asks for everything gets nothing."""

REASONS = {
    "no_tool": "no tool here serves the request",
    "harmful": "it would do harm to somebody",
    "nothing_to_do": "nothing is asked for",
}
"""The reasons for which a request may be declined, and what each of them means."""


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a request: ``label`` are its words ("shipping city"), ``text`` what the user says for it."""

    label: str
    text: str


LABEL = "{label}"
"""Where the label of a hidden slot is in what it is replaced by."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``template`` holds ``{name}`` for each of ``slots``; those ``hidden`` the user does not say unasked.

    ``gap`` is what a hidden one is replaced by.
    """

    template: str
    slots: dict[str, Slot] = {}
    hidden: tuple[str, ...] = ()
    gap: str = f"(ask me for the {LABEL})"

    def text(self) -> str:
        """The request as the user says it."""
        reply_text = {
            name: fill(self.gap, {"label": slot.label}) if name in self.hidden else slot.text
            for name, slot in self.slots.items()
        }
        return fill(self.template, reply_text)


def fill(template: str, values: Mapping[str, object]) -> str:
    """``{name}`` replaced by its value; a name that has none stays."""
    return re.sub(r"{(\w+)}", lambda found: str(values.get(found[1], found[0])), template)


def reply(request: Request, question: str) -> tuple[str, list[str]]:
    """What the user answers, and the names of the hidden slots in it."""
    words = set(re.findall(r"\w+", question.lower()))
    asked = [name for name in request.hidden if words >= _head(request.slots[name])]
    if not asked:
        return "I do not know what you mean. Which detail of my request do you need?", []
    if len(asked) > MAX_ASKED:
        return "That is too much at once. Ask me for one detail after the other.", []
    reply_text = " ".join(f"The {request.slots[name].label} is {request.slots[name].text}." for name in asked)
    return reply_text, asked


def leaks(reply_text: str, request: Request, asked: Collection[str]) -> list[str]:
    """The hidden slots, other than ``asked``, that a text of the user gives away."""
    return [
        name
        for name in request.hidden
        if name not in asked
        and re.search(rf"(?<!\w){re.escape(request.slots[name].text)}(?!\w)", reply_text, re.IGNORECASE)
    ]


def hideable(request: Request) -> list[str]:
    """The slots that can be kept back: nothing else in the request says them, and one question asks for one."""
    names = []
    for name, slot in request.slots.items():
        alone = msgspec.structs.replace(request, hidden=(name,))
        heads = [_head(other) for other in request.slots.values()]
        if _head(slot) and heads.count(_head(slot)) == 1 and not leaks(alone.text(), alone, ()):
            names.append(name)
    return names


def _head(slot: Slot) -> set[str]:
    """The last word of a label, by which a question means it: who asks for the city means the shipping city."""
    return set(re.findall(r"\w+", slot.label.lower())[-1:])


def built_in(settings: Settings) -> list[Schema]:
    """The tools that are not in the toolbox."""
    answer = {
        "type": "string",
        "description": "the values that the user wanted to know, in the order asked for, no others; empty if nothing",
    }
    tools = [function(FINISH, "Ends the conversation when all is done.", {"answer": answer})]
    if settings.user:
        question = {"type": "string", "description": "which detail of the request you need"}
        tools.append(function(ASK_USER, "Asks the user for a detail.", {"question": question}))
    if settings.decline:
        meanings = "; ".join(f"{name}: {meaning}" for name, meaning in REASONS.items())
        reason = {"type": "string", "enum": list(REASONS), "description": meanings}
        text = "Ends the conversation without doing what is asked, where that is right."
        tools.append(function(DECLINE, text, {"reason": reason}))
    return tools


def rules(toolbox: Toolbox, tools: list[Schema]) -> str:
    """The document that an agent gets: what this is, the policy, and how every call is written."""
    calls = [f"{tool.name}({', '.join(tool.parameters['properties'])}): {tool.description}" for tool in tools]
    how = 'Calls are written as tool_name(argument=3, other="text"), with every argument. The tools:'
    return "\n".join(part for part in (toolbox.about, toolbox.policy, how, *calls) if part)
