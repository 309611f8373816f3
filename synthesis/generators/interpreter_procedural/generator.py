"""Interpreter worlds without a model: tables that are read page by page, in a Python session.

An inspiration text chooses what the tables are about; the seed decides their fields, ranges and pages.
"""

from __future__ import annotations

import random
import re
from string import Template

import msgspec

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.generators.interpreter_procedural.scheme import Scheme
from agentmill.synthesis.generators.interpreter_procedural.themes import THEMES, Theme
from agentmill.synthesis.generators.procedural import BACKEND, proposal

_SOURCE = Template(
    '''def tables():
    """The names of the tables, and the fields of their rows."""
    return {name: list(rows[0]) for name, rows in _tables.items()}

def page(table, number):
    """Rows of a table, $page_size at a time, from page 0 on; none after the last."""
    return [dict(row) for row in _tables[table][$page_size * number : $page_size * (number + 1)]]
'''
)
_RULES = Template(
    "tables() names the tables and their fields. page(table, number) gives $page_size rows as dicts, from page 0 on, "
    "and an empty list after the last page. The field $link of table $table names a row of table $other."
)


class InterpreterGenerator:
    """Proposes tables by chance; no model is asked."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """A world; same inspiration and seed, same world."""
        return propose(inspiration, seed)


def propose(inspiration: Inspiration, seed: int) -> EnvironmentSpec:
    """The world of ``inspiration`` and ``seed``."""
    chance = random.Random(derive_seed("interpreter", BACKEND, inspiration.inspiration_id, seed))
    scheme = _scheme(_theme(inspiration.text, chance), chance)
    words = msgspec.json.decode(msgspec.json.encode(scheme))  # a range as a list, which tables can hold
    return proposal(
        "interpreter",
        inspiration,
        seed,
        {"theme": scheme.table},
        name=f"{scheme.table}-{scheme.other}",
        source=_SOURCE.substitute(words),
        parameters={"rules": _RULES.substitute(words), "scheme": words},
        structure_digest=scheme.structure(),
    )


def _theme(text: str, chance: random.Random) -> Theme:
    """The theme that most words of the text speak for; by chance among equals."""
    words = re.findall(r"[a-z]+", text.lower())
    votes = [sum(word.startswith(known) for known in theme.words.split() for word in words) for theme in THEMES]
    return chance.choice([theme for theme, count in zip(THEMES, votes, strict=True) if count == max(votes)])


def _scheme(theme: Theme, chance: random.Random) -> Scheme:
    options = chance.sample(list(theme.options), chance.randint(2, len(theme.options)))
    ranges = chance.sample(list(theme.ranges), chance.randint(2, len(theme.ranges)))
    other, link, attribute, attribute_options = theme.other
    return Scheme(
        table=theme.table,
        row=theme.row,
        key="id",
        options={field: list(theme.options[field]) for field in options},
        ranges={field: (theme.ranges[field][0], theme.ranges[field][1] + chance.randint(0, 9)) for field in ranges},
        other=other,
        link=link,
        attribute=attribute,
        attribute_options=list(attribute_options),
        page_size=chance.randint(4, 8),
    )
