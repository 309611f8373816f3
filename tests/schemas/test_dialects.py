"""Calls in text: found where they stand, with every character of them; what only looks like one is left alone."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.config import validate
from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.dialects.options import WithDialect
from agentmill.schemas.format import FormatError, Origin, Read
from agentmill.schemas.formats.sharegpt.format import ShareGpt
from agentmill.schemas.messages.dialect import write_actions
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, TextObservation
from tests.errors import user_error
from tests.schemas.formats.chat_records import names
from tests.schemas.records import json_objects, texts


def call(function: str, description: str | None = None, raw: str | None = None, **kwargs: Any) -> ApiAction:
    return ApiAction(function=function, kwargs=kwargs, raw_arguments=raw, description=description)


def code(content: str, language: str = "python", description: str | None = None) -> CodeAction:
    return CodeAction(language=language, content=content, description=description)


def message(content: str, description: str | None = None) -> MessageAction:
    return MessageAction(content=content, description=description)


READ: list[tuple[str, str, list[AnyAction]]] = [
    ("react", 'Thought: hm\nAction: f\nAction Input: {"a": "01"}', [call("f", "hm", a="01")]),
    ("react", "Action: f\nAction Input: two words", [call("f", raw="two words")]),
    ("react", "Thought:\nI look.\n\nAction:\nsearch[red shoes]", [call("search", "I look.\n", input="red shoes")]),
    ("react", "Thought: x\nAction: get(A, b.c)", [call("get", "x", input="A, b.c")]),
    ("react", "Think: x\n\nAct: finish()", [call("finish", "x\n")]),
    ("react", "Think: x\n\nAct: bash\n\n```bash\nls \\\n  -l\n```", [code("ls \\\n  -l", "bash", "x\n")]),
    ("react", "Action: Operation\n```sql\nSELECT 1\n```", [code("SELECT 1", "sql")]),
    ("react", "ACTION: go to shelf 1", [message("go to shelf 1")]),
    (
        "react",
        "Action: search[a]\nObservation: foo\nThought: y\nAction: finish[z]",
        [call("search", input="a"), message("Observation: foo\nThought: y\nAction: finish[z]")],
    ),
    (
        "react",
        'Thought: hm\nAction: f\nAction Input: {"q": 1}\n\n Observation: r\n',
        [call("f", "hm", q=1), message(" Observation: r")],
    ),
    ("react", "ACTION: go\nTHOUGHT: so", [message("go"), message("THOUGHT: so")]),
    (
        "react",
        'Thought: I know.\nFinal Answer: Paris\nAction: search\nAction Input: {"q": 1}',
        [message("Paris", "I know."), message('Action: search\nAction Input: {"q": 1}')],
    ),
    (
        "react",
        "Act: bash\n```\ncat <<E\nAct: x\nE\n```\nAct: finish\n```\n```",
        [code("cat <<E\nAct: x\nE", "bash"), message("Act: finish\n```\n```")],
    ),
    ("react", "Action:\nAction: f\nThought: x", [message("Action: f"), message("Thought: x")]),
    ("react", "Thought: done\nFinal Answer: #3", [message("#3", "done")]),
    ("react", 'So.\nAction: Answer\nFinal Answer: ["a"]', [message('["a"]', "So.")]),
    (
        "function_xml",
        "I open it.\n<function=edit>\n<parameter=n>01</parameter>\n<parameter=t>\n  a\n\n</parameter>\n</function>",
        [call("edit", "I open it.", n="01", t="  a\n")],
    ),
    (
        "function_xml",
        "<function=f><parameter=x>a</parameter> b</parameter></function>\nand\n<function=g></function> ok",
        [call("f", x="a</parameter> b"), call("g", "and"), message(" ok")],
    ),
    ("function_xml", "<tool_call>\n<function=f>\n</function>\n</tool_call>", [call("f")]),
    ("execute", "Run:\n<execute>\nx = 1\n\n</execute>", [code("x = 1\n", description="Run:")]),
    ("execute", "<execute> ls </execute>", [code("ls")]),
    ("execute", "<execute_bash>\nls\n</execute_bash>\nDone.", [code("ls", "bash"), message("Done.")]),
    ("execute", "<execute_ipython>\n  x\n</execute_ipython>", [code("  x")]),
    (
        "fenced",
        "One:\n```python\na\n```\nTwo:\n~~~\nb\n~~~",
        [code("a", description="One:"), code("b", "", description="Two:")],
    ),
    ("fenced", "```python\nx\n```python\ny\n```", [code("x\n```python\ny")]),
    ("fenced", "````md\n```\nx\n```\n````", [code("```\nx\n```", "md")]),
    ("brackets", "I buy it.\nclick[Buy [x] Now]\n", [call("click", "I buy it.", input="Buy [x] Now")]),
    (
        "webarena",
        "As in ```click [1]```, I will ```type [7] [a] [b]] [0]```.",
        [call("type", "As in ```click [1]```, I will ", id="7", content="a] [b]", press_enter_after="0")],
    ),
    ("webarena", "```hover [1]``` I said.", [call("hover", id="1"), message(" I said.")]),
    ("webarena", "So:\n```\ntype [7] [a\n b]\n```", [call("type", "So:", id="7", content="a\n b")]),
    ("webarena", "```I think. ```stop [N/A]``````", [call("stop", "```I think. ", answer="N/A")]),
    ("webarena", "```scroll [direction=down]```", [call("scroll", direction="down")]),
    (
        "webarena",
        "```type [7] [a] [press_enter_after=0]```",
        [call("type", id="7", content="a", press_enter_after="0")],
    ),
    ("webarena", "```go_back```", [call("go_back")]),
    (
        "calls",
        '# step 2: As in hover(x).\nclick(element_id="93")\n# step summary: click (it)',
        [call("click", "# step 2: As in hover(x).", element_id="93"), message("# step summary: click (it)")],
    ),
    ("calls", "\tscroll(0, 200.5)\nnoop()", [call("scroll", delta_x=0, delta_y=200.5), call("noop")]),
    (
        "calls",
        "type(element='a\\'b', options=[\"x\", None, True])",
        [call("type", element="a'b", options=["x", None, True])],
    ),
    (
        "hermes",
        'Both:\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {"n": 12345678901234567890123}}</tool_call>',
        [call("f", "Both:", a="</tool_call>"), call("g", n=12345678901234567890123)],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": [1, null]}"}</tool_call>', [call("f", a=[1, None])]),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', [call("f", raw="[1]")]),
    ("hermes", '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', [call("f", a=1)]),
]


@pytest.mark.parametrize(("name", "text", "actions"), READ)
def test_calls_are_found(name: str, text: str, actions: list[AnyAction]) -> None:
    spoken = DIALECTS.load(name)().read(text)
    assert spoken.actions == actions
    assert spoken.awaits == ("Final Answer" not in text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("react", "Thought: just a thought"),
        ("react", "An Action: in the middle of a line"),
        ("function_xml", "<function=f>\n<parameter=a>x"),
        ("function_xml", "<function=f>\n<parameter=a>1</parameter><parameter=a>2</parameter></function>"),
        ("function_xml", "<function=f>\nno parameter\n</function>"),
        ("execute", "<execute>x</execute_bash>"),
        ("fenced", "```python\nnever closed"),
        ("brackets", "click[x] and more"),
        ("webarena", "click [1]"),
        ("webarena", "```click [1"),
        ("webarena", "```click 1```"),
        ("webarena", "```fly [1]```"),
        ("webarena", "```go_back [1]```"),
        ("webarena", "```python\nclick [1]\n```"),
        ("calls", "click(element)"),
        ("calls", "click('7', 'left', [], 4)"),
        ("calls", "x = click('7')"),
        ("calls", "# click('7')"),
        ("calls", "click({'a': 1})"),
        ("hermes", '<tool_call>{"name": "f", "argum'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", "<tool_call>[]</tool_call>"),
        ("hermes", '<tool_call>{"name": "f"}'),
    ],
)
def test_what_only_looks_like_a_call_is_none(name: str, text: str) -> None:
    assert DIALECTS.load(name)().read(text) is None


SAID: list[tuple[str, list[AnyAction], str]] = [
    ("react", [call("f", "hm", a=1)], 'Thought: hm\nAction: f\nAction Input: {"a": 1}'),
    ("react", [message("yes")], "Final Answer: yes"),
    ("function_xml", [call("f", "x", a="1")], "x\n<function=f>\n<parameter=a>1</parameter>\n</function>"),
    ("function_xml", [call("f", a="1\n2")], "<function=f>\n<parameter=a>\n1\n2\n</parameter>\n</function>"),
    ("execute", [code("x"), message("Done.")], "<execute>\nx\n</execute>\nDone."),
    ("execute", [code("ls", "bash")], "<execute_bash>\nls\n</execute_bash>"),
    ("fenced", [code("```", "md")], "````md\n```\n````"),
    ("brackets", [call("search", input="a")], "search[a]"),
    ("webarena", [call("click", "I click.", id="7")], "I click.\n```click [7]```"),
    ("webarena", [call("type", id="7", content="a", press_enter_after="1")], "```type [7] [a] [1]```"),
    ("webarena", [call("new_tab")], "```new_tab```"),
    (
        "calls",
        [call("f", "Why.", a='x"\ny', n=[1.5, None]), message("So.")],
        'Why.\nf(a="x\\"\\ny", n=[1.5, None])\nSo.',
    ),
    ("hermes", [call("f", é="ü")], '<tool_call>\n{"name": "f", "arguments": {"é": "ü"}}\n</tool_call>'),
]


@pytest.mark.parametrize(("name", "actions", "text"), SAID)
def test_calls_are_said(name: str, actions: list[AnyAction], text: str) -> None:
    dialect = DIALECTS.load(name)()
    assert write_actions(dialect, actions) == text
    assert dialect.read(text).actions == actions


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("react", [call("f"), call("g")]),
        ("react", [code("x")]),
        ("react", [call("f", a="x\nFinal Answer: y"), message("z")]),
        ("function_xml", [call("f", a=1)]),
        ("function_xml", [call("f", raw="[1]")]),
        ("function_xml", [call("f", a="</parameter>\n<parameter=b>")]),
        ("function_xml", [code("x")]),
        ("execute", [call("f")]),
        ("execute", [code("print('</execute>')")]),
        ("fenced", [call("f")]),
        ("fenced", [code("x", "py\nthon")]),
        ("brackets", [call("f", a="x")]),
        ("brackets", [call("f", input="x\ny")]),
        ("webarena", [code("x")]),
        ("webarena", [call("click", id=7)]),
        ("webarena", [call("click", element="7")]),
        ("webarena", [call("click", id="7"), call("click", id="8")]),
        ("webarena", [call("type", id="7", content="a] [1")]),
        ("webarena", [call("stop", answer="```")]),
        ("calls", [code("x")]),
        ("calls", [call("f", raw="x")]),
        ("calls", [call("f", a={"b": 1})]),
        ("calls", [call("no name", a=1)]),
        ("calls", [message("f(a=1)")]),
        ("hermes", [code("x")]),
        ("hermes", [call("f", raw="[1, 2]")]),
    ],
)
def test_what_a_dialect_has_no_words_for_is_refused(name: str, actions: list[AnyAction]) -> None:
    with pytest.raises(FormatError) as caught:
        write_actions(DIALECTS.load(name)(), actions)
    assert caught.value.reason == "unsayable"


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    "piece",
    [
        "<function=f><parameter=a>",
        "<execute>",
        "</execute><execute>",
        "```python\n",
        '<tool_call>{"name": "',
        "Action: ",
        "Action: f[",
        "```type [1] [",
        "\nThought: \nAction:  \n",
        "a[",
        "\t \n",
    ],
)
def test_a_model_that_repeats_itself_is_read_in_no_time(name: str, piece: str) -> None:
    text = piece * (200_000 // len(piece))
    started = time.process_time()
    DIALECTS.load(name)().read(text)
    assert time.process_time() - started < 3


def test_arguments_get_the_names_that_are_given() -> None:
    for name, text in (("brackets", "search[red]"), ("react", "Action: search[red]")):
        dialect = DIALECTS.load(name)(parameters={"search": "keywords"})
        assert dialect.read(text).actions == [call("search", keywords="red")]


ALFWORLD = ("go to {location}", "take {item} from {source}", "put {item} in/on {target}", "look")
KNOWLEDGE = {"get_neighbors": ["variable", "relation"], "count": "variable"}
CHOICE = {"Answer": "element", "Value": "value"}


@pytest.mark.parametrize(
    ("options", "text", "action"),
    [
        ({"commands": ALFWORLD}, "ACTION: go to shelf 1", call("go", location="shelf 1")),
        (
            {"commands": ALFWORLD},
            "THOUGHT: I take it.\nACTION: take ball 2 from box from attic 1",
            call("take", "I take it.", item="ball 2", source="box from attic 1"),
        ),
        ({"commands": ALFWORLD}, "ACTION: put pan 1 in/on stove 1", call("put", item="pan 1", target="stove 1")),
        ({"commands": ALFWORLD}, "ACTION: look", call("look")),
        ({"commands": ALFWORLD}, "ACTION: look around", message("look around")),
        (
            {"parameters": KNOWLEDGE},
            "Action: get_neighbors(#2, a.b)",
            call("get_neighbors", variable="#2", relation="a.b"),
        ),
        (
            {"parameters": KNOWLEDGE},
            "Action: get_neighbors(Lincoln, Abraham, a.b)",
            call("get_neighbors", variable="Lincoln, Abraham", relation="a.b"),
        ),
        (
            {"parameters": KNOWLEDGE},
            'Action: get_neighbors[("a, b", c), d]',
            call("get_neighbors", variable='("a, b", c)', relation="d"),
        ),
        ({"parameters": KNOWLEDGE}, "Action: get_neighbors(#2)", call("get_neighbors", variable="#2")),
        ({}, 'Action: click(id="7", n=2, to=["a"])', call("click", id="7", n=2, to=["a"])),
        ({}, "Action: search(a=b)", call("search", input="a=b")),
        ({}, "Action: answer(x=5)", call("answer", input="x=5")),
        ({"parameters": {"look": "query"}}, "Action: look(x=5)", call("look", query="x=5")),
        ({"parameters": KNOWLEDGE}, "Action: count(#0, 1)", call("count", variable="#0, 1")),
        (
            {"arguments": CHOICE},
            "Thought: I see: yes.\nSo.\nAnswer: C.\nAction: TYPE\nValue: a: b.",
            call("TYPE", "I see: yes.\nSo.", element="C", value="a: b."),
        ),
        ({"arguments": CHOICE}, "Thought: None fits.\nAnswer: A.", call("Answer", "None fits.", element="A")),
        ({"arguments": CHOICE}, "Answer: C\nAction: CLICK\n", call("CLICK", element="C")),
        (
            {"arguments": CHOICE},
            "Thought: x\nAnswer: C.\nSurely.\nAction: CLICK",
            message("CLICK", "x\nAnswer: C.\nSurely."),
        ),
        ({"arguments": CHOICE}, "Action: search[a]", call("search", input="a")),
    ],
)
def test_react_actions_get_the_arguments_that_options_name(
    options: dict[str, Any], text: str, action: AnyAction
) -> None:
    dialect = validate(DIALECTS.load("react"), options, "react")
    assert dialect.read(text).actions == [action]
    turns = [{"from": "human", "value": "Do."}, {"from": "gpt", "value": text}]
    format_ = ShareGpt(order="as_said", dialect="react", dialect_options=options)
    run = format_.read(msgspec.json.encode({"conversations": turns}), Origin("demo")).trajectory
    assert format_.write(run).document["conversations"] == turns
    if isinstance(action, ApiAction):
        assert dialect.read(write_actions(dialect, [action])).actions == [action]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"commands": ["{item}"]}, ("rule-broken", "commands", "{item}")),
        ({"commands": ["go  to"]}, ("rule-broken", "commands", "go  to")),
        ({"commands": ["take {item} from {item}"]}, ("rule-broken", "commands", "take {item} from {item}")),
        ({"parameters": {"f": []}}, ("invalid-value", "parameters.f")),
        ({"parameters": {"f": ["a", "a"]}}, ("invalid-value", "parameters.f", "['a', 'a']")),
    ],
)
def test_options_that_would_lose_arguments_are_refused(options: dict[str, Any], error: tuple[str, ...]) -> None:
    with user_error(*error):
        validate(DIALECTS.load("react"), options, "react")


def test_several_arguments_in_brackets_are_separated_by_commas() -> None:
    dialect = DIALECTS.load("brackets")(parameters={"move": ["item", "to"]})
    action = call("move", item="red, round ball", to="box")
    assert dialect.read("move[red, round ball, box]").actions == [action]
    assert write_actions(dialect, [action]) == "move[red, round ball, box]"
    with pytest.raises(FormatError):
        write_actions(dialect, [call("move", item="ball", to="box, red")])


def test_which_fenced_blocks_are_code() -> None:
    text = "A:\n```\nls\n```\nB:\n```python\nx\n```"
    fenced = DIALECTS.load("fenced")
    assert fenced(language="bash").read(text).actions == [code("ls", "bash", "A:"), code("x", description="B:")]
    tagged = code("x", description="A:\n```\nls\n```\nB:")
    assert fenced(language=None).read(text).actions == [tagged]
    assert fenced(language="bash", last=True).read(text).actions == [tagged]
    assert fenced(language=None).read("```\nls\n```") is None


def heard(dialect: str, options: dict[str, Any], *turns: str) -> Read:
    """What is read of turns of the agent and, in between, of the user."""
    given = [{"from": ("human", "gpt")[place % 2], "value": text} for place, text in enumerate(("Do.", *turns))]
    format_ = ShareGpt(order="as_said", dialect=dialect, dialect_options=options)
    read = format_.read(msgspec.json.encode({"conversations": given}), Origin("demo"))
    assert format_.write(read.trajectory).document["conversations"] == given
    return read


def sources(read: Read) -> list[tuple[str, str | None]]:
    return [(item.source, item.tool_call_id) for item in read.trajectory.content if isinstance(item, TextObservation)]


def test_a_user_turn_that_opens_as_a_result_is_the_environments() -> None:
    block, result = "```python\nx\n```", "Execution result: \n1"
    options = {"results": ["Execution result:"], "only_results": True}
    read = heard("fenced", options, block, result, block, "Shorter, please.", "Well.", result)
    linked = ("environment", "call_1")
    assert sources(read) == [("user", None), linked, ("user", None), ("environment", None)]
    assert "guessed_source" not in read.remarks


def test_a_wrong_answer_is_told_by_the_environment() -> None:
    wrong = "Observation:\nYour answer is wrong.\nYou have 4 steps left."
    read = heard("execute", {}, "It is <solution> 1 </solution>", wrong, "<execute>\n2\n</execute>", "Observation:\n2")
    assert sources(read) == [("user", None), ("environment", None), ("environment", "call_3")]
    assert sources(heard("execute", {"results": []}, "It is 1.", wrong))[1] == ("user", None)
    assert sources(heard("execute", {}))[0] == ("user", None)


def test_a_marked_result_of_a_terminal_call_is_linked_to_it() -> None:
    read = heard(
        "react", {}, "Action: finish[42]", "Observation: Episode finished.", "Action: finish[43]", "Next task."
    )
    assert sources(read)[1:] == [("environment", "call_1"), ("user", None)]


def test_the_users_turn_after_a_plain_command_that_ends_the_task_is_the_users() -> None:
    read = heard("react", {}, "Think: done\n\nAct: finish", "Now a new task.", "ACTION: go to box", "A box.", "So.")
    assert sources(read)[1:] == [("user", None), ("environment", None)]
    assert read.remarks["guessed_source"] == 1


def test_names_before_the_arguments_of_a_text_call_are_no_part_of_them() -> None:
    options = {"parameters": {"get_relations": "variable", "get_neighbors": ["variable", "relation"]}}
    dialect = DIALECTS.load("react")(**options)
    for text, kwargs in (
        ("get_relations(variable=#1)", {"variable": "#1"}),
        ("get_neighbors(variable=#1, relation=a.b)", {"variable": "#1", "relation": "a.b"}),
        ("get_neighbors(#1, a=b)", {"variable": "#1", "relation": "a=b"}),
        ("search[input=x]", {"input": "input=x"}),
    ):
        assert dialect.read(f"Action: {text}").actions[0].kwargs == kwargs
    row = {
        "conversations": [
            {"from": "human", "value": "Q"},
            {"from": "gpt", "value": "Action: get_relations(variable=#1)"},
        ]
    }
    form = ShareGpt(dialect="react", dialect_options=options, order="as_said")
    assert form.write(form.read(msgspec.json.encode(row), Origin("d")).trajectory).document == row


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        (
            "1. Run:\n   ```python\n   if x:\n       y\n   ```\n2. Done.",
            [code("if x:\n    y", description="1. Run:"), message("2. Done.")],
        ),
        ("```py title=a.py\nx\n```", [code("x", "py")]),
        ("- a\n  ```python\n  x\nb\n```python\ny\n```", [code("y", description="- a\n  ```python\n  x\nb")]),
        ("```text\n  ```python\n  x\n  ```\n```", [code("  ```python\n  x\n  ```", "text")]),
    ],
)
def test_fenced_blocks_of_lists_are_indented(text: str, actions: list[AnyAction]) -> None:
    assert DIALECTS.load("fenced")().read(text).actions == actions
    row = {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": text}]}
    form = ShareGpt(dialect="fenced", order="as_said")
    assert form.write(form.read(msgspec.json.encode(row), Origin("d")).trajectory).document == row


def test_a_source_that_only_the_place_of_a_turn_tells_is_counted() -> None:
    read = heard("react", {}, "Action: look[a]", "A box.", "Action: look[b]", "Observation: none", "So.", "Thanks.")
    assert sources(read)[1:] == [("environment", "call_1"), ("environment", "call_3"), ("user", None)]
    assert read.remarks["guessed_source"] == 1


def test_only_code_in_the_languages_that_are_run_is_a_call() -> None:
    text = "A:\n```json\n{}\n```\nB:\n```python\nx\n```"
    actions = DIALECTS.load("fenced")(languages=["python"]).read(text).actions
    assert actions == [code("x", description="A:\n```json\n{}\n```\nB:")]


BLOCKS = {
    "function_xml": "<function=f>\n<parameter=a>1</parameter>\n</function>",
    "execute": "<execute>\nx\n</execute>",
    "fenced": "```python\nx\n```",
    "hermes": '<tool_call>\n{"name": "f"}\n</tool_call>',
    "calls": 'f(a="1")',
}
prose = st.text(st.sampled_from("aé .\n\t\r"), max_size=8)


def words(text: str) -> str | None:
    return text if text.strip() else None


@pytest.mark.parametrize("name", BLOCKS)
@given(before=prose, between=prose, after=prose)
def test_every_character_around_calls_is_kept(name: str, before: str, between: str, after: str) -> None:
    block = BLOCKS[name]
    actions = DIALECTS.load(name)().read(f"{before}\n{block}\n{between}\n{block}\n{after}").actions
    assert [action.description for action in actions[:2]] == [words(before), words(between)]
    assert [action.content for action in actions[2:]] == ([after] if words(after) else [])


@given(before=prose, after=st.text(st.sampled_from(" \n"), max_size=3))
def test_every_character_before_a_command_is_kept(before: str, after: str) -> None:
    actions = DIALECTS.load("brackets")().read(f"{before}\nclick[x]{after}").actions
    assert actions == [call("click", words(before), input="x")]


@given(function=names.filter(str.isidentifier), kwargs=json_objects, prose=texts.filter(str.isalpha))
def test_hermes_says_any_object(function: str, kwargs: dict[str, Any], prose: str) -> None:
    dialect = DIALECTS.load("hermes")()
    actions = [call(function, prose), ApiAction(function="g", kwargs=kwargs), message(prose)]
    assert dialect.read(write_actions(dialect, actions)).actions == actions


@given(kwargs=st.dictionaries(st.sampled_from("abc"), texts))
def test_function_xml_says_any_texts(kwargs: dict[str, str]) -> None:
    dialect = DIALECTS.load("function_xml")()
    actions = [ApiAction(function="f", kwargs=kwargs, description="hm")]
    assert dialect.read(write_actions(dialect, actions)).actions == actions


def test_the_option_is_checked() -> None:
    assert WithDialect().chosen_dialect is None
    with user_error("unknown-key", "hermes", "parameters"):
        _ = WithDialect(dialect="hermes", dialect_options={"parameters": {}}).chosen_dialect


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("execute", "<execute_bash>\n" * 20_000 + "</execute_ipython>"),
        ("execute", "".join(f"<execute_a{number}>" for number in range(20_000)) + "</execute_a>"),
        ("react", "Action: a" + " " * 100_000 + "x\nAction Input: {}"),
        ("hermes", "<tool_call>{\n" * 20_000 + "</tool_call>"),
        ("function_xml", "<function=a>\n<parameter=b>" * 20_000 + "</function>"),
        (
            "function_xml",
            "<function=a>\n<parameter=b>" * 20_000 + "</parameter>\n<parameter=b>1</parameter></function>",
        ),
    ],
)
def test_what_is_repeated_before_a_last_tag_is_read_once(name: str, text: str) -> None:
    started = time.process_time()
    DIALECTS.load(name)().read(text)
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>{"),
        ("function_xml", "<function="),
        ("function_xml", "<function=a><parameter=b>1</parameter>"),
        ("function_xml", "<function=a><parameter=b>1</parameter><parameter=b>"),
    ],
)
def test_what_a_model_repeats_and_never_closes_is_read_once(name: str, text: str) -> None:
    started = time.process_time()
    assert DIALECTS.load(name)().read(text * 20_000) is None
    # Where each opening is searched to the end of the text, it is from 0.8 s to two minutes.
    assert time.process_time() - started < 0.3
