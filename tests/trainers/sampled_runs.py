"""Random runs of an agent, and the conversations that every view makes training rows of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import strategies as st

from agentmill.schemas.chat import grouped, to_functions, to_messages, to_template
from agentmill.schemas.config import validate
from agentmill.schemas.records.rows import Message, PreferenceRow, SftRow, UnpairedRow
from agentmill.schemas.records.trajectory import AnyItem, ApiAction, CodeAction, Trajectory
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.pairing import plan
from agentmill.schemas.views.tree_view import Relative
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.policies.completion import token_delta, token_sequence
from agentmill.trainers.chat_template import renderer
from tests.builders import agent_message, called, instruction, outcome, seen, tool, trajectory
from tests.trainers.template_families import TemplateCase

Row = SftRow | PreferenceRow | UnpairedRow

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sft", {}),
    ("sft", {"rows": "step"}),
    ("sft", {"loss": "not_error", "tool_format": "xml"}),
    ("sft", {"rows": "step", "tool_format": "react"}),
    ("reflection", {}),
    ("reflection", {"rows": "trajectory", "tool_format": "json"}),
    ("world_model", {}),
    ("world_model", {"rows": "step", "tool_format": "xml"}),
    ("unpaired", {}),
    ("unpaired", {"rows": "step"}),
    ("trajectory_pairs", {}),
    ("step_pairs", {"score": "outcome"}),
    ("search_trace", {}),
    ("spliced", {}),
]
"""Every view whose rows carry loss on messages, with parameters that change what is told."""

# Words of templates and tools among them: what is said may look like what surrounds it.
PIECES = [
    *("look", "a", "I", " ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "{", '"', "\\", "'", "<", "name", "<tool_call>"),
    *("🙂", "👩‍👩‍👧", "e\u0301", "שלום", "مرحبا", "\u202e", "日本", "\ufeff", "<|im_end|>", "<|eot_id|>"),
]  # fmt: skip

TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(max_size=8),
    st.sampled_from(["", " ", "\n", "move the box to the door."]),
)
NAMES = st.sampled_from(["look", "open_door"])


@st.composite
def turn(draw: st.DrawFn, number: int, case_of_template: TemplateCase, plain: bool) -> list[AnyItem]:
    """A turn of the agent and what answers it; ``plain``: only what the template can say."""
    kinds = ["text", "text", "code", "call"]
    kinds += ["calls"] if case_of_template.parallel or not plain else []
    kinds += ["thought"] if case_of_template.beside or not plain else []
    kinds += [] if plain else ["broken"]
    kind = draw(st.sampled_from(kinds))
    reasoning = draw(TEXTS) if (case_of_template.reasoning or not plain) and draw(st.booleans()) else None
    if kind in ("text", "code"):
        text = draw(TEXTS)
        action = (
            agent_message(text, number) if kind == "text" else CodeAction(language="bash", content=text, turn=number)
        )
        actions: list[Any] = [action]
    else:
        count = draw(st.integers(2, 3)) if kind == "calls" else 1
        actions = [_call(draw, number, index) for index in range(count)]
    if kind == "broken":
        actions[0] = msgspec.structs.replace(actions[0], kwargs={}, raw_arguments='{"where": ')
    if kind == "thought":
        actions[0] = msgspec.structs.replace(actions[0], description=draw(TEXTS))
    actions[0] = msgspec.structs.replace(actions[0], reasoning_content=reasoning)
    error = draw(st.booleans())
    return [*actions, *(seen(draw(TEXTS), number, error=error, tool_call_id=each.tool_call_id) for each in actions)]


def _call(draw: st.DrawFn, number: int, index: int) -> ApiAction:
    where = draw(st.dictionaries(st.sampled_from(["where", "n"]), TEXTS | st.integers(-9, 9), max_size=2))
    return called(draw(NAMES), number, f"call{number:03d}{index:02d}", **where)


@st.composite
def families(draw: st.DrawFn, case_of_template: TemplateCase, plain: bool) -> list[Trajectory]:
    """A success and a failure that begin alike; the success may be a branch of the failure."""
    number = draw(st.integers(0, 2))
    start = [draw(turn(index, case_of_template, plain)) for index in range(1, number + 1)]
    lengths = [draw(st.integers(1, 2)) for _ in range(2)]
    ways = [[draw(turn(number + 1 + index, case_of_template, plain)) for index in range(length)] for length in lengths]
    branch = draw(st.booleans())
    fields = {
        "system_prompt": draw(st.none() | TEXTS),
        "tools": [tool("look"), tool("open_door")] if draw(st.booleans()) else [],
    }
    opening = [instruction(draw(TEXTS)), seen(draw(TEXTS))]
    kept = [[_copied(item) for item in each] for each in start] if branch else start
    good = _run("good", [opening, *kept, *ways[0]], "success", fields)
    if branch:
        good = msgspec.structs.replace(good, parent_id="bad", branch_turn=number)
    return [good, _run("bad", [opening, *start, *ways[1]], "failure", fields)]


def _run(name: str, turns: Sequence[Sequence[AnyItem]], status: Any, fields: dict[str, Any]) -> Trajectory:
    content = [item for each in turns for item in each]
    return trajectory(name, content=content, outcome=outcome(status), **fields)


def _copied(item: AnyItem) -> AnyItem:
    return msgspec.structs.replace(item, context_operation="copied")


def rows_of(name: str, parameters: dict[str, Any], family: Sequence[Trajectory]) -> list[Row]:
    """All rows that a view makes of a family."""
    if name in VIEWS:
        view = validate(VIEWS.load(name), parameters, "test")
        return [row for run in family for row in _unless_unused(view, run)]
    if name in FAMILY_VIEWS:
        view = validate(FAMILY_VIEWS.load(name), parameters, "test")
        made = view.make_rows([Relative(run, NOTHING) for run in family])
        return [row for each in made.values() if isinstance(each, list) for row in each]
    view = validate(PAIR_VIEWS.load(name), parameters, "test")
    candidates = []
    for run in family:
        with suppress(Unused):
            candidates += view.candidates(run, NOTHING)
    by_id = {run.trajectory_id: run for run in family}
    pairs = plan(candidates, view.rules).pairs
    return [view.make_row(pair, by_id[pair.chosen.trajectory_id], by_id[pair.rejected.trajectory_id]) for pair in pairs]


def played(
    run: Trajectory, case_of_template: TemplateCase, tokenizer: Any, manners: Sequence[str], carried: bool = False
) -> Trajectory:
    """The run with the tokens of each turn, as a server would give them; the turns take ``manners`` in order.

    What is said in a ``usual`` turn has the tokens of its text, in a ``spelt`` one those of its letters; a ``cut`` one
    lacks its end. A server makes each prompt of the text of all messages; with ``carried`` it keeps the tokens it has.
    """
    render, functions = renderer(tokenizer), to_functions(run.tools) or None
    told = to_messages(run.system_prompt, [])
    content: list[AnyItem] = []
    turns, known = 0, 0
    for message, indices in grouped(run.content):
        items = [run.content[index] for index in indices]
        if message.role == "assistant":
            prompt = render(to_template(told), functions, True)
            before = token_sequence(content) if carried else []
            text, sampled = _sampled(message, case_of_template, tokenizer, manners[turns % len(manners)])
            ids = before + ids_of(prompt[known if before else 0 :], tokenizer)
            items[0] = msgspec.structs.replace(items[0], tokens=token_delta(content, ids, sampled, [], None))
            turns, known = turns + 1, len(prompt) + len(text)
        told.append(message)
        content += items
    return msgspec.structs.replace(run, content=content)


def _sampled(message: Message, case_of_template: TemplateCase, tokenizer: Any, manner: str) -> tuple[str, list[int]]:
    """What is said, and its tokens; a turn that says nothing cannot be cut."""
    text = case_of_template.says(message) or case_of_template.end
    words = text.removesuffix(case_of_template.end)
    if manner == "spelt":
        letters = [one for letter in words for one in ids_of(letter, tokenizer)]
        return text, [*letters, *ids_of(case_of_template.end, tokenizer)]
    if manner == "cut" and words:
        return words, ids_of(words, tokenizer)
    return text, ids_of(text, tokenizer)


def ids_of(text: str, tokenizer: Any) -> list[int]:
    """The usual tokens of a text."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _unless_unused(view: Any, run: Trajectory) -> list[Row]:
    try:
        rows: list[Row] = view.make_rows(run, NOTHING)
    except Unused:
        return []
    return rows
