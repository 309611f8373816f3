"""What an agent is told of a toolbox: the tools that every one has, and the document that it reads first."""

from __future__ import annotations

from schemas.trajectory import Tool as Schema
from synthesis.environments.toolbox.arguments import function
from synthesis.environments.toolbox.state import Settings
from synthesis.environments.toolbox.toolbox import ASK_USER, FINISH, Toolbox


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
    return tools


def rules(toolbox: Toolbox, tools: list[Schema]) -> str:
    """The document that an agent gets: what this is, the policy, and how every call is written."""
    calls = [f"{tool.name}({', '.join(tool.parameters['properties'])}): {tool.description}" for tool in tools]
    how = 'Calls are written as tool_name(argument=3, other="text"), with every argument. The tools:'
    return "\n".join(part for part in (toolbox.about, toolbox.policy, how, *calls) if part)
