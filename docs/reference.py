"""Pages that MkDocs makes of the code: commands, recipes, operators, published systems, columns of records, errors."""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from agentmill.pipelines.cli.main import agentmill
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.recipes.grammar import Fork, Iterate, Recipe
from agentmill.pipelines.recipes.shipped import PLANNED, RecipeCard, recipe_cards, sketch_files
from agentmill.pipelines.tables.inspection import short_type
from agentmill.pipelines.terminal.console import RESULTS
from agentmill.schemas.arrow.layout import arrow_schema
from agentmill.schemas.config import read_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.record_kinds import RECORD_KINDS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of the folder."""
    pages = {
        "glossary": glossary(),
        "commands": commands(),
        "recipes": recipes(),
        "operators": operators(),
        "ledger": ledger(),
        "sketches": sketches(),
        "records": records(),
        "errors": errors(),
    }
    for name, lines in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    return files


def glossary() -> Iterator[str]:
    """The terms that documents, messages and code use, each for one idea."""
    yield "# Glossary\n"
    terms = read_yaml(Path(__file__).with_name("glossary.yaml"))["terms"]
    yield from table(("term", "means"), ((entry["term"], entry["means"]) for entry in terms))


def commands() -> Iterator[str]:
    """Every command with its options, and the objects that they print as JSON."""
    yield "# Commands\n"
    printed: dict[str, Any] = {}
    yield from command(agentmill, "agentmill", click.Context(agentmill, info_name="agentmill"), printed)
    yield "## JSON documents\n"
    for name, schema in sorted(printed.items()):
        yield f"### {name}\n"
        yield f"{inspect.cleandoc(schema.get('description', ''))}\n"
        yield from table(("key", "type"), ((f"`{key}`", type_of(field)) for key, field in schema["properties"].items()))


def command(known: click.Command, path: str, context: click.Context, printed: dict[str, Any]) -> Iterator[str]:
    """A command, and those below it; the JSON Schemas of what they print are added to ``printed``."""
    yield f"{'#' * (1 + len(path.split()))} {path}\n"
    yield f"{inspect.cleandoc(known.help or '')}\n"
    if known.epilog:
        yield from (f"    {line}" for line in known.epilog.removeprefix("\b\n").splitlines())
        yield ""
    options = [each.get_help_record(context) for each in known.params if isinstance(each, click.Option)]
    yield from table(("option", "says"), ((f"`{record[0]}`", record[1]) for record in options if record))
    for result in getattr(known.callback, RESULTS, ()):
        schema = msgspec.json.schema(result)
        printed |= schema.get("$defs", {})
        yield f"With `--json`: {type_of(schema)}.\n"
    if isinstance(known, click.Group):
        for name in known.list_commands(context):
            below = known.get_command(context, name)
            if below is not None:
                inner = click.Context(below, parent=context, info_name=name)
                yield from command(below, f"{path} {name}", inner, printed)


def recipes() -> Iterator[str]:
    """What stands in a recipe outside its operators."""
    yield "# Keys of a recipe\n"
    for config in (Recipe, Iterate, Fork):
        yield from parameters(config, config.__name__.lower())


def operators() -> Iterator[str]:
    """Every operator with its parameters."""
    yield "# Operators\n"
    for name in OPERATORS:
        yield from parameters(OPERATORS.load(name), name)


LEDGER = Path(__file__).with_name("ledger.yaml")

LEDGER_HEAD = """\
# Published systems

{total} published systems that make agent data, as chains of operators: {recipe} have a recipe, {expressible} more are
expressible, and for {missing} something is missing.

* **recipe**: a shipped recipe follows the system. Its status is how far it was run: `data` is the half that makes
  data, without a model, `whole` is all of it, in small, and `untried` is nothing. In what it differs is in its `paper`.
* **expressible** means that a [sketch](sketches.md) is planned without an error; it was never run. In what it differs
  is in its `paper`.
* **missing** names the operators of the chain that do not exist, or else what no operator can do. Of alternatives all
  must exist; optional steps are left out.

The page is computed from the operators, the shipped recipes and sketches, and `docs/ledger.yaml`.
"""


def ledger() -> Iterator[str]:
    """Each published system with its recipe or its sketch, or what is missing."""
    listed = read_yaml(LEDGER)
    # Recipes come first, and one of a name goes before a sketch of it.
    cards = {compared(card.name): card for card in reversed(recipe_cards())}
    covered = {
        name: coverage(cards.get(compared(name)), chain, listed["aliases"], listed["lacks"].get(name, NO_SKETCH))
        for name, chain in listed["systems"].items()
    }
    counts = Counter(kind for kind, _ in covered.values())
    kinds = {kind: counts[kind] for kind in ("recipe", "expressible", "missing")}
    yield LEDGER_HEAD.format(total=counts.total(), **kinds)
    needed = Counter(name for kind, shown in covered.values() if kind == "missing" for name in shown)
    yield "## Missing operators\n"
    operators_needed = ((name, str(n)) for name, n in needed.most_common() if name.startswith("`"))
    yield from table(("operator", "systems that need it"), operators_needed)
    yield "## Systems\n"
    yield from table(
        ("system", "chain", "is", ""),
        (
            (name, ", ".join(listed["systems"][name]), f"**{kind}**", ", ".join(shown))
            for name, (kind, shown) in covered.items()
        ),
    )


NO_SKETCH = "a sketch"


def coverage(
    card: RecipeCard | None, chain: list[str], aliases: dict[str, list[str]], lacks: str = NO_SKETCH
) -> tuple[str, list[str]]:
    """``recipe`` with its name and status, ``expressible`` with its sketch, or ``missing`` with the operators that do
    not exist; where all exist, with what else it ``lacks``."""
    if card is not None and card.status == PLANNED:
        return "expressible", [f"[{card.name}](sketches.md#{card.name})"]
    if card is not None:
        return "recipe", [f"`{card.name}`", f"`{card.status}`"]
    needed = (name for word in chain for name in aliases.get(word, [word]))
    return "missing", [f"`{name}`" for name in dict.fromkeys(needed) if name not in OPERATORS] or [lacks]


def sketches() -> Iterator[str]:
    """Every sketch as it is written."""
    yield "# Sketches\n"
    yield "Recipes that are planned without an error, and were never run: `agentmill plan NAME`."
    yield "Files in `data/` are yours.\n"
    for name, path in sketch_files().items():
        yield f"## {name}\n"
        yield f"```yaml\n{path.read_text(encoding='utf-8')}```\n"


def compared(name: str) -> str:
    """The letters and digits of a name, for a system and its recipe are spelled differently."""
    return "".join(filter(str.isalnum, name.lower()))


def parameters(config: type[BaseModel], title: str) -> Iterator[str]:
    """The fields of a configuration class, and of those that it is made of."""
    schema = config.model_json_schema()
    yield from described(schema, f"## {title}")
    for name, part in schema.get("$defs", {}).items():
        if part.get("properties"):
            yield from described(part, f"### {title}: {name}")


def described(schema: dict[str, Any], heading: str) -> Iterator[str]:
    """A JSON Schema of an object as a table."""
    yield f"{heading}\n"
    yield f"{inspect.cleandoc(schema.get('description', ''))}\n"
    needed = schema.get("required", [])
    rows = (
        (f"`{name}`", type_of(field), default_of(field, name in needed), field.get("description", ""))
        for name, field in schema.get("properties", {}).items()
    )
    yield from table(("key", "type", "default", "says"), rows)


def type_of(schema: dict[str, Any]) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(type_of(each) for each in schema["anyOf"] if each.get("type") != "null")
    if schema.get("type") == "array":
        # A tuple has no other items than the first ones.
        first, *_ = schema.get("prefixItems", [schema.get("items", {})])
        return f"list of {type_of(first)}"
    inner = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(inner, dict):
        return f"map to {type_of(inner)}"
    return str(schema.get("type", "any"))


def default_of(schema: dict[str, Any], needed: bool) -> str:
    """The default of a field as YAML would say it."""
    if needed:
        return "**needed**"
    given = schema.get("default")
    return "" if given is None else f"`{msgspec.json.encode(given).decode()}`"


def records() -> Iterator[str]:
    """Every record with its columns."""
    yield "# Columns of tables\n"
    for record in (kind.type for kind in RECORD_KINDS.values()):
        yield f"## {record.__name__}\n"
        yield f"{inspect.getdoc(record)}\n"
        fields = {field.encode_name: field for field in msgspec.structs.fields(record)}
        columns = arrow_schema(record)
        yield from table(
            ("column", "Arrow type", "may be null"),
            ((f"`{each.name}`", f"`{short_type(each.type)}`", optional(fields.get(each.name))) for each in columns),
        )


def errors() -> Iterator[str]:
    """Every code of a mistake with what is wrong."""
    yield "# Error codes\n"
    yield (
        "Where a command ends with exit code 2, the first line of its message ends with one of these, in brackets. Only"
        " mistakes in options and arguments have none: they come with the usage of the command.\n"
    )
    yield from table(("code", "what is wrong"), ((f"`{code}`", code.sentence) for code in sorted(ErrorCode)))


def optional(field: msgspec.structs.FieldInfo | None) -> str:
    """Whether a field may be null; a column that is no field (the version) may not."""
    return "yes" if field is not None and type(None) in typing.get_args(field.type) else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table, or nothing if it has no rows."""
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    if lines:
        columns = list(head)
        yield f"| {' | '.join(columns)} |"
        yield f"| {' | '.join('---' for _ in columns)} |"
        yield from lines
        yield ""


def escaped(cell: str) -> str:
    """A cell in one line."""
    return " ".join(cell.replace("|", "\\|").split())
