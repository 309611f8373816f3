"""Trajectories as messages, and messages as servers and templates want them."""

from __future__ import annotations

from agentmill.schemas.chat import grouped, to_functions, to_messages, to_openai, to_template
from agentmill.schemas.records.rows import Message, MessageCall
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, ImageObservation, Tool, WebObservation
from tests.builders import agent_message, called, instruction, seen, tool_trajectory, trajectory


def test_a_text_episode_becomes_alternating_messages() -> None:
    run = trajectory()
    assert to_messages(run.system_prompt, run.content) == [
        Message(role="system", content="Act by commands."),
        Message(role="user", content="Put the ball into the box.\nYou are at home."),
        Message(role="assistant", content="fly to box"),
        Message(role="user", content="You cannot fly."),
        Message(role="assistant", content="put ball into box"),
        Message(role="user", content="Done."),
    ]


def test_parallel_calls_are_one_message_and_each_answer_its_own() -> None:
    run = tool_trajectory()
    messages = to_messages(None, run.content)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[1].content is None
    assert messages[1].tool_calls == [
        MessageCall(name="look", arguments='{"where":"box"}', id="call00100"),
        MessageCall(name="look", arguments='{"where":"floor"}', id="call00101"),
    ]
    assert messages[2:4] == [
        Message(role="tool", content="empty", tool_call_id="call00100", name="look"),
        Message(role="tool", content="a ball", tool_call_id="call00101", name="look"),
    ]


def test_the_role_of_an_observation_follows_its_link() -> None:
    content = [
        instruction(),
        called("look", 1, "a"),
        seen("unlinked", 1),
        seen("linked", 1, tool_call_id="a"),
        seen("linked to nothing", 1, tool_call_id="z"),
    ]
    assert [(m.role, m.content) for m in to_messages(None, content)[2:]] == [
        ("user", "unlinked"),
        ("tool", "linked"),
        ("user", "linked to nothing"),
    ]


def test_observations_of_different_turns_stay_apart() -> None:
    messages = to_messages(
        None, [seen("a", 0), seen("b", 0), seen("c", 1), agent_message("d", 1), agent_message("e", 2)]
    )
    assert [message.content for message in messages] == ["a\nb", "c", "d", "e"]


def test_thoughts_precede_what_is_done_and_shared_ones_are_said_once() -> None:
    actions = [
        called("look", 1, "a", x=1),
        agent_message("Looking.", 1, description="I should look."),
        ApiAction(function="go", kwargs={}, turn=1, description="I should look.", reasoning_content="hidden"),
    ]
    (message,) = to_messages(None, actions)
    assert message.content == "I should look.\nLooking."
    assert message.reasoning_content == "hidden"
    assert [call.name for call in message.tool_calls] == ["look", "go"]


def test_code_is_fenced_and_the_fence_outgrows_the_code() -> None:
    messages = to_messages(None, [CodeAction(language="python", content="print('```')", turn=1)])
    assert messages == [Message(role="assistant", content="````python\nprint('```')\n````")]


def test_pages_and_images_are_text() -> None:
    page = WebObservation(url="http://a", axtree="[1] link", html="<a>", turn=1)
    image = ImageObservation(content="shot.png", source="environment", turn=1)
    assert to_messages(None, [page, image])[0].content == "http://a\n[1] link\n[image: shot.png]"


def test_messages_know_the_items_they_are_made_of() -> None:
    assert [items for _, items in grouped(tool_trajectory().content)] == [[0], [1, 2], [3], [4], [5]]


def test_a_server_gets_arguments_as_text_and_ids_for_all_calls() -> None:
    message = Message(
        role="assistant", reasoning_content="why", tool_calls=[MessageCall(name="f", arguments='{"a":1.0}')]
    )
    function = {"name": "f", "arguments": '{"a":1.0}'}
    assert to_openai([message]) == [
        {
            "role": "assistant",
            "content": "",
            "reasoning": "why",
            "tool_calls": [{"id": "call_0_0", "type": "function", "function": function}],
        }
    ]


def test_a_template_gets_arguments_as_objects() -> None:
    texts = ['{"a":[1.0,null]}', "not json", "[1]", '"text"']
    message = Message(role="assistant", tool_calls=[MessageCall(name="f", arguments=text, id="a") for text in texts])
    calls = to_template([message])[0]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"a": [1.0, None]}, {}, {}, {}]


def test_arguments_that_were_no_json_are_kept_as_their_text() -> None:
    action = ApiAction(function="f", kwargs={}, raw_arguments='{"a": ', turn=1)
    (message,) = to_messages(None, [action])
    assert message.tool_calls[0].arguments == '{"a": '


def test_a_tool_message_carries_its_link_and_name() -> None:
    message = Message(role="tool", content="x", tool_call_id="a", name="f")
    assert to_openai([message]) == [{"role": "tool", "content": "x", "tool_call_id": "a", "name": "f"}]


def test_tool_message_names_the_latest_call_of_its_id() -> None:
    content = [
        seen("early", 0, tool_call_id="c"),
        called("search", 1, "c"),
        seen("found", 1, tool_call_id="c"),
        called("book", 2, "c"),
        called("pay", 2, "c"),
        seen("booked", 2, tool_call_id="c"),
        seen("paid", 2, tool_call_id="c"),
    ]
    results = [message for message in to_messages(None, content) if message.role == "tool"]
    assert [(message.content, message.name) for message in results] == [
        ("early", "search"),
        ("found", "search"),
        ("booked", "book"),
        ("paid", "pay"),
    ]


def test_tools_become_function_schemas() -> None:
    assert to_functions([Tool(name="f", parameters={"type": "object"}, description="does f", strict=True)]) == [
        {
            "type": "function",
            "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": True},
        }
    ]
    assert to_functions([Tool(name="f", parameters={})]) == [
        {"type": "function", "function": {"name": "f", "parameters": {}}}
    ]
