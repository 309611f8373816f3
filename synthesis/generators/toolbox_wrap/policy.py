"""Policies of growing complexity, after CC-Gen: rules are predicates, and the document is rendered from them.

The tools do not keep the rules, the agent must. Level 1 bounds numbers and names cases, level 2 adds exceptions,
level 3 terms that are defined elsewhere, level 4 sections that have nothing to do with any rule.
"""

from __future__ import annotations

import random
from functools import cache

import msgspec

from agentmill.synthesis.environments.toolbox.toolbox import Column, Rule, Table, Tool, Toolbox, quoted
from agentmill.synthesis.generators.data_files import convert, read_table

LEVELS = (1, 2, 3, 4)
RULES_PER_LEVEL = 2


class PolicyWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What policies are written with. ``aside`` is what a user adds to a request under a policy."""

    heading: str
    terms_heading: str
    aside: str
    terms: tuple[str, ...]
    idle: tuple[str, ...]


@cache
def policy_words() -> PolicyWords:
    """The words of policies."""
    return convert(read_table(__package__, "policy.yaml"), PolicyWords, f"{__package__}/data/policy.yaml")


class Clause(msgspec.Struct, frozen=True):
    """A condition on the row that a call is about: SQL that is true where the rule forbids, and its wording."""

    condition: str
    words: str


def with_policy(toolbox: Toolbox, level: int, chance: random.Random) -> Toolbox:
    """``toolbox`` with a policy of ``level``; fewer rules where its tools do not admit as many."""
    rules: list[Rule] = []
    definitions: list[str] = []
    tools = [tool for tool in toolbox.tools if tool.writes and tool.request]
    chance.shuffle(tools)
    for tool in tools:
        if len(rules) == RULES_PER_LEVEL * level:
            break
        rule = _rule(toolbox, tool, level, len(rules) + 1, definitions, chance)
        # Numbers are given to rules that are kept, so that they have no gaps.
        if rule is not None:
            rules.append(rule)
    return msgspec.structs.replace(toolbox, rules=tuple(rules), policy=document(rules, definitions, level, chance))


def document(rules: list[Rule], definitions: list[str], level: int, chance: random.Random) -> str:
    """The policy as the agent reads it; definitions come behind the rules that need them."""
    lines = [f"{rule.name}. {rule.text}" for rule in rules]
    for text in chance.sample(policy_words().idle, 3) if level >= 4 else ():
        lines.insert(chance.randint(0, len(lines)), text)
    terms = [policy_words().terms_heading, *definitions] if definitions else []
    return "\n".join([policy_words().heading, *lines, *terms])


def _rule(
    toolbox: Toolbox, tool: Tool, level: int, number: int, definitions: list[str], chance: random.Random
) -> Rule | None:
    """A rule for one tool; ``None`` where nothing about its arguments can be said."""
    name = f"rule {number}"
    bounded = [
        parameter
        for parameter in tool.parameters
        if parameter.most is not None and toolbox.keyed(parameter.column) is None and parameter.most > 3
    ]
    if bounded and chance.random() < 0.5:
        most = chance.randint(2, (bounded[0].most or 4) - 1)
        text = f"{tool.name} may be called with {bounded[0].name} up to {most} and no more."
        return Rule(name=name, tool=tool.name, query=f"SELECT coalesce(:{bounded[0].name} <= {most}, 1)", text=text)
    owners = {parameter.name: toolbox.keyed(parameter.column) for parameter in tool.parameters}
    for table in dict.fromkeys(owners.values()):
        closed = [column for column in table.columns if len(column.values) > 1] if table is not None else []
        if table is None or not closed:
            continue
        clause = _clause(table, closed, level, definitions, chance)
        rows = [
            f"(SELECT {clause.condition} FROM {table.name} WHERE {table.key} = :{name})"
            for name, owner in owners.items()
            if owner == table
        ]
        # A missing row or an empty column is null in SQL, and what is unknown must not forbid.
        query = "SELECT " + " AND ".join(f"NOT coalesce({row}, 0)" for row in rows)
        text = f"{tool.name} may not be called for a {table.noun} {clause.words}."
        return Rule(name=name, tool=tool.name, query=query, text=text)
    return None


def _clause(table: Table, closed: list[Column], level: int, definitions: list[str], chance: random.Random) -> Clause:
    """When the rule forbids: a value; with an exception by another column; or a term that stands for it."""
    column = chance.choice(closed)
    value = chance.choice(column.values)
    clause = Clause(f"{column.name} = {quoted(value)}", f"whose {column.words} is {value}")
    exceptions = _exceptions(table, column)
    if level >= 2 and exceptions:
        exception = chance.choice(exceptions)
        clause = Clause(
            f"{clause.condition} AND NOT coalesce({exception.condition}, 0)",
            f"{clause.words}, unless its {exception.words}",
        )
    free = [term for term in policy_words().terms if not any(f'"{term} ' in each for each in definitions)]
    if level >= 3 and free and chance.random() < 0.6:
        term = chance.choice(free)
        definitions.append(f'A "{term} {table.noun}" is one {clause.words}.')
        clause = Clause(clause.condition, f"that is a {term} {table.noun}")
    return clause


def _exceptions(table: Table, used: Column) -> list[Clause]:
    """What another column may say in favour of a row."""
    found = []
    for column in table.columns[1:]:
        if column is used or column.references:
            continue
        if column.values:
            found.append(
                Clause(f"{column.name} = {quoted(column.values[-1])}", f"{column.words} is {column.values[-1]}")
            )
        elif column.type == "integer" and column.most is not None:
            half = column.most // 2
            found.append(Clause(f"{column.name} > {half}", f"{column.words} is above {half}"))
    return found
